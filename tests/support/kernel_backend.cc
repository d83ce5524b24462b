#include "support/kernel_backend.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvcache::testing {
namespace {

// A buffer that is counted while it lives.
class LentBuffer : public Buffer {
 public:
  using Buffers = std::map<const std::byte*, std::size_t>;

  LentBuffer(std::unique_ptr<Buffer> inner, std::shared_ptr<std::int64_t> bytes,
             std::shared_ptr<Buffers> buffers)
      : inner_(std::move(inner)), bytes_(std::move(bytes)), buffers_(std::move(buffers)) {
    *bytes_ += static_cast<std::int64_t>(inner_->size_bytes());
    (*buffers_)[inner_->data()] = inner_->size_bytes();
  }
  ~LentBuffer() override {
    *bytes_ -= static_cast<std::int64_t>(inner_->size_bytes());
    buffers_->erase(inner_->data());
  }
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  std::byte* data() override { return inner_->data(); }
  std::size_t size_bytes() const override { return inner_->size_bytes(); }

 private:
  std::unique_ptr<Buffer> inner_;
  std::shared_ptr<std::int64_t> bytes_;
  std::shared_ptr<Buffers> buffers_;
};

// The first half of the moves' cells, as in ReferenceBackend: what a call that fails has done.
std::vector<CellMove> Halved(std::span<const CellMove> moves) {
  std::vector<CellMove> half(moves.begin(), moves.end());
  for (CellMove& move : half) move.length /= 2;
  return half;
}

std::vector<CellRun> FirstCells(std::span<const CellRun> runs, std::int64_t count) {
  std::vector<CellRun> first;
  for (const CellRun& run : runs) {
    const auto length = static_cast<std::int32_t>(std::min<std::int64_t>(run.length, count));
    if (length > 0) first.push_back({run.cell, length});
    count -= length;
  }
  return first;
}

TensorView FirstTokens(TensorView view, std::int64_t count) {
  view.dims[2] = count;
  return view;
}

// Bytes from the first value to the end of the last one.
std::int64_t SpanBytes(const TensorView& view) {
  if (view.elements() == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    last += (view.dims[i] - 1) * view.stride_bytes[i];
  }
  return last + InfoOf(view.dtype).block_bytes;
}

Status Injected(const char* what) {
  return {StatusCode::kIo, std::string("injected failure of a ") + what};
}

}  // namespace

Result<std::unique_ptr<Buffer>> KernelBackend::Allocate(std::size_t size_bytes) {
  if (Fails(Call::kAllocate)) {
    return Status(StatusCode::kOutOfMemory,
                  "injected failure of an allocation of " + std::to_string(size_bytes) + " bytes");
  }
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> inner, kernels_->Allocate(size_bytes));
  return std::unique_ptr<Buffer>(
      std::make_unique<LentBuffer>(std::move(inner), lent_bytes(), buffers_));
}

Result<TensorView> KernelBackend::Readable(const TensorView& view,
                                           std::vector<std::unique_ptr<Buffer>>& staged) {
  if (kernels_->works_in_host_memory() || AreInKeys(view) || view.elements() == 0) return view;
  const auto after = buffers_->upper_bound(view.data);
  if (after != buffers_->begin()) {
    const auto& [begin, size] = *std::prev(after);
    if (view.data < begin + size) return view;
  }
  const std::int64_t bytes = SpanBytes(view);
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                           kernels_->Allocate(static_cast<std::size_t>(bytes)));
  const TensorView whole =
      TensorView::Dense(buffer->data(), view.dtype, bytes / InfoOf(view.dtype).block_bytes);
  KVCACHE_RETURN_IF_ERROR(
      kernels_->CopyFromHost({view.data, static_cast<std::size_t>(bytes)}, whole));
  TensorView copy = view;
  copy.data = buffer->data();
  staged.push_back(std::move(buffer));
  return copy;
}

Status KernelBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                              std::span<const CellRun> cells) {
  std::vector<std::unique_ptr<Buffer>> staged;
  KVCACHE_ASSIGN_OR_RETURN(const TensorView keys, Readable(k, staged));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView values, Readable(v, staged));
  if (!Fails(Call::kStore)) return kernels_->StoreKv(layer, keys, values, cells);
  const std::int64_t count = k.dims[2] / 2;
  KVCACHE_RETURN_IF_ERROR(kernels_->StoreKv(layer, FirstTokens(keys, count),
                                            FirstTokens(values, count), FirstCells(cells, count)));
  return Injected("store");
}

Status KernelBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  if (!Fails(Call::kCopy)) return kernels_->CopyCells(layer, moves);
  KVCACHE_RETURN_IF_ERROR(kernels_->CopyCells(layer, Halved(moves)));
  return Injected("copy");
}

Status KernelBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                    std::span<const CellMove> moves) {
  if (!Fails(Call::kTransfer)) return kernels_->TransferCells(from, to, moves);
  KVCACHE_RETURN_IF_ERROR(kernels_->TransferCells(from, to, Halved(moves)));
  return Injected("transfer");
}

Status KernelBackend::CopyValues(const TensorView& from, const TensorView& to) {
  std::vector<std::unique_ptr<Buffer>> staged;
  KVCACHE_ASSIGN_OR_RETURN(const TensorView source, Readable(from, staged));
  if (!Fails(Call::kValues)) return kernels_->CopyValues(source, to);
  return Injected("copy of values");
}

Status KernelBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  if (!Fails(Call::kTransfer)) return kernels_->CopyToHost(from, to);
  return Injected("transfer");
}

Status KernelBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  if (!Fails(Call::kTransfer)) return kernels_->CopyFromHost(from, to);
  return Injected("transfer");
}

}  // namespace kvcache::testing
