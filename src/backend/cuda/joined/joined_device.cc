#include "backend/cuda/joined/joined_device.h"

#include <algorithm>
#include <optional>

#include "backend/cuda/joined/joins.h"

namespace kvcache::cuda {
namespace {

class JoinedBuffer final : public Buffer {
 public:
  JoinedBuffer(JoinedDevice& device, std::unique_ptr<Buffer> buffer)
      : device_(device), buffer_(std::move(buffer)) {}
  ~JoinedBuffer() override { device_.BeforeFree(); }
  std::byte* data() override { return buffer_->data(); }
  std::size_t size_bytes() const override { return buffer_->size_bytes(); }

 private:
  JoinedDevice& device_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace

Result<std::unique_ptr<Buffer>> JoinedDevice::Allocate(std::size_t size_bytes) {
  KVCACHE_RETURN_IF_ERROR(TakeFailure());
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, device_->Allocate(size_bytes));
  return std::unique_ptr<Buffer>(std::make_unique<JoinedBuffer>(*this, std::move(buffer)));
}

void JoinedDevice::BeforeFree() {
  if (count_ == 0) return;
  Status started = Start();
  if (!started.ok()) failed_ = std::move(started);
}

Status JoinedDevice::TakeFailure() {
  if (failed_.ok()) return Status::Ok();
  count_ = 0;
  return std::exchange(failed_, Status::Ok());
}

Status JoinedDevice::CopyIn(std::span<const std::byte> from, std::byte* to) {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->CopyIn(from, to);
}

Status JoinedDevice::CopyOut(const std::byte* from, std::span<std::byte> to) {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->CopyOut(from, to);
}

Status JoinedDevice::CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->CopyInUnits(units, fill, to);
}

Status JoinedDevice::CopyOutUnits(const std::byte* from, const LinkUnits& units,
                                  const TakeUnit& take) {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->CopyOutUnits(from, units, take);
}

Status JoinedDevice::Copy(const std::byte* from, std::byte* to, std::size_t bytes) {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->Copy(from, to, bytes);
}

Status JoinedDevice::Synchronize() {
  KVCACHE_RETURN_IF_ERROR(Start());
  return device_->Synchronize();
}

Status JoinedDevice::Start() {
  KVCACHE_RETURN_IF_ERROR(TakeFailure());
  const int count = std::exchange(count_, 0);
  if (count == 2) {
    const std::optional<JoinedNormLaunch> norm = JoinAddAndNorm(held_[0], held_[1]);
    if (norm.has_value()) {
      return cuda::Launch(*device_, *norm->kernel, norm->grid, norm->args, norm->shared_bytes);
    }
  }
  for (int i = 0; i < count; ++i) {
    const Held& held = held_[static_cast<std::size_t>(i)];
    KVCACHE_RETURN_IF_ERROR(device_->Launch(*held.kernel, held.grid, held.shared_bytes,
                                            std::span(held.args).first(held.args_bytes)));
  }
  return Status::Ok();
}

void JoinedDevice::Hold(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                        std::span<const std::byte> args) {
  Held& held = held_[static_cast<std::size_t>(count_++)];
  held.kernel = &kernel;
  held.grid = grid;
  held.shared_bytes = shared_bytes;
  held.args_bytes = args.size();
  std::ranges::copy(args, held.args.begin());
}

bool JoinedDevice::Continues(const Kernel& kernel, std::span<const std::byte> args) const {
  if (args.size() > Held::kMaxArgs) return false;
  if (count_ == 0) return BeginsJoin(kernel.part);
  if (count_ == kMost) return false;
  const KernelPart first = held_[0].kernel->part;
  return (first == KernelPart::kAdd && kernel.part == KernelPart::kNorm) ||
         (first == KernelPart::kRotate && kernel.part == KernelPart::kRotate);
}

Result<bool> JoinedDevice::Join(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                                std::span<const std::byte> args) {
  const std::span<const Held> held = std::span(held_).first(static_cast<std::size_t>(count_));
  const auto start = [&](const auto& joined) -> Result<bool> {
    count_ = 0;
    KVCACHE_RETURN_IF_ERROR(
        cuda::Launch(*device_, *joined.kernel, joined.grid, joined.args, joined.shared_bytes));
    return true;
  };
  if (kernel.part == KernelPart::kStore) {
    if (const auto joined = JoinStore(held, grid, args, shared_bytes); joined)
      return start(*joined);
    return false;
  }
  if (!IsQuantize(kernel.part)) return false;
  if (const auto joined = JoinGate(held, kernel.part, grid, args); joined) return start(*joined);
  if (const auto joined = JoinNorm(held, kernel.part, args); joined) return start(*joined);
  return false;
}

Status JoinedDevice::Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                            std::span<const std::byte> args) {
  KVCACHE_RETURN_IF_ERROR(TakeFailure());
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Status::Ok();
  if (count_ > 0) {
    KVCACHE_ASSIGN_OR_RETURN(const bool joined, Join(kernel, grid, shared_bytes, args));
    if (joined) return Status::Ok();
  }
  if (!Continues(kernel, args)) {
    KVCACHE_RETURN_IF_ERROR(Start());
    if (!Continues(kernel, args)) return device_->Launch(kernel, grid, shared_bytes, args);
  }
  Hold(kernel, grid, shared_bytes, args);
  return Status::Ok();
}

}  // namespace kvcache::cuda
