#include "backend/cuda/device/driver_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvcache::cuda {
namespace {

// Flags of the driver: a stream that does not wait for others; an event without times.
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kWithoutTimes = 2;

bool IsRefusal(int result) {
  return result == kDriverInvalidValue || result == kDriverOutOfMemory ||
         result == kDriverNotFound || result == kDriverOutOfResources;
}

// The driver cannot run these kernels: it is older than they are, or the device is.
bool IsRefusedImage(int result) {
  return result == kDriverInvalidImage || result == kDriverNoBinary ||
         result == kDriverInvalidPtx || result == kDriverNoCompiler ||
         result == kDriverUnsupportedPtx;
}

}  // namespace

DriverQueue::~DriverQueue() {
  if (context_ == nullptr) return;
  // Results do not matter: nothing can be done about them.
  driver_.set_context(context_);
  if (stream_ != nullptr) driver_.synchronize(stream_);
  for (Half& half : halves_) {
    if (half.event != nullptr) driver_.destroy_event(half.event);
    if (half.memory != nullptr) driver_.free_host(half.memory);
  }
  if (stream_ != nullptr) driver_.destroy_stream(stream_);
  driver_.release_context(device_);
}

Status DriverQueue::Open(int device) {
  device_ = device;
  KVCACHE_RETURN_IF_ERROR(Check(driver_.retain_context(&context_, device), "opening the device"));
  KVCACHE_RETURN_IF_ERROR(Enter());
  KVCACHE_RETURN_IF_ERROR(Check(driver_.create_stream(&stream_, kNonBlocking), "making a queue"));
  for (Half& half : halves_) {
    void* memory = nullptr;
    KVCACHE_RETURN_IF_ERROR(
        Check(driver_.allocate_host(&memory, kHalfBytes, 0), "taking page-locked memory"));
    half.memory = static_cast<std::byte*>(memory);
    KVCACHE_RETURN_IF_ERROR(
        Check(driver_.create_event(&half.event, kWithoutTimes), "making an event"));
  }
  return Status::Ok();
}

Status DriverQueue::Enter() {
  if (!lost_.ok()) return lost_;
  return Check(driver_.set_context(context_), "using the device");
}

Status DriverQueue::Check(int result, const char* what) {
  if (result == kDriverOk) return Status::Ok();
  const std::string text =
      "device '" + name_ + "': " + what + ": " + DriverErrorText(driver_, result);
  if (result == kDriverOutOfMemory) return {StatusCode::kOutOfMemory, text};
  if (IsRefusal(result)) return {StatusCode::kInternal, text};
  if (IsRefusedImage(result)) {
    return {StatusCode::kUnsupported, text + "; a newer driver may know the kernels"};
  }
  lost_ = Status(StatusCode::kIo, text + "; the device is lost");
  return lost_;
}

Status DriverQueue::WaitFor(Half& half) {
  if (!half.pending) return Status::Ok();
  half.pending = false;
  return Check(driver_.wait_for_event(half.event), "waiting for a copy");
}

Result<DriverQueue::Half*> DriverQueue::TakeHalf(std::size_t bytes) {
  if (halves_[current_].used + bytes > kHalfBytes) {
    Half& full = halves_[current_];
    KVCACHE_RETURN_IF_ERROR(Check(driver_.record_event(full.event, stream_), "marking a copy"));
    full.pending = true;
    current_ = (current_ + 1) % kHalves;
    KVCACHE_RETURN_IF_ERROR(WaitFor(halves_[current_]));
    halves_[current_].used = 0;
  }
  return &halves_[current_];
}

Status DriverQueue::CopyIn(std::span<const std::byte> from, DriverAddress to) {
  KVCACHE_RETURN_IF_ERROR(Enter());
  for (std::size_t done = 0; done < from.size();) {
    const std::size_t size = std::min(from.size() - done, kHalfBytes / 4);
    KVCACHE_ASSIGN_OR_RETURN(Half* const half, TakeHalf(size));
    std::byte* const at = half->memory + half->used;
    std::memcpy(at, from.data() + done, size);
    KVCACHE_RETURN_IF_ERROR(
        Check(driver_.copy_in(to + done, at, size, stream_), "copying to the device"));
    half->used += (size + 63) / 64 * 64;
    done += size;
  }
  return Status::Ok();
}

Status DriverQueue::CopyOut(DriverAddress from, std::span<std::byte> to) {
  KVCACHE_RETURN_IF_ERROR(Enter());
  if (to.empty()) return Synchronize();
  // Neither half is in use by an earlier copy to the device after this.
  KVCACHE_RETURN_IF_ERROR(Synchronize());
  constexpr std::size_t kPiece = kHalfBytes / 4;
  const std::size_t pieces = (to.size() + kPiece - 1) / kPiece;
  const auto size_of = [&](std::size_t i) { return std::min(kPiece, to.size() - i * kPiece); };
  // Piece i arrives in one half while the host copies piece i - 1 from the other.
  for (std::size_t i = 0; i <= pieces; ++i) {
    if (i < pieces) {
      Half& half = halves_[i % kHalves];
      KVCACHE_RETURN_IF_ERROR(
          Check(driver_.copy_out(half.memory, from + i * kPiece, size_of(i), stream_),
                "copying from the device"));
      KVCACHE_RETURN_IF_ERROR(Check(driver_.record_event(half.event, stream_), "marking a copy"));
      half.pending = true;
    }
    if (i == 0) continue;
    Half& before = halves_[(i - 1) % kHalves];
    KVCACHE_RETURN_IF_ERROR(WaitFor(before));
    std::memcpy(to.data() + (i - 1) * kPiece, before.memory, size_of(i - 1));
  }
  return Status::Ok();
}

Status DriverQueue::Synchronize() {
  KVCACHE_RETURN_IF_ERROR(Enter());
  KVCACHE_RETURN_IF_ERROR(Check(driver_.synchronize(stream_), "waiting for the device"));
  for (Half& half : halves_) {
    half.used = 0;
    half.pending = false;
  }
  return Status::Ok();
}

}  // namespace kvcache::cuda
