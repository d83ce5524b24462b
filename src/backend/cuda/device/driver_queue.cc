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

// Copies begin at cache lines.
std::size_t AlignedUp(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Returns the bytes of as many whole units as cross the link at once, where a copy has about `parts` of them: enough for
// all threads, and small beside the copy, whose first piece waits for the host, or whose last one for the link.
std::size_t PieceBytes(const LinkUnits& units, std::size_t parts) {
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  const std::size_t size = std::clamp(units.bytes / parts, kLeast, DriverQueue::kSlotBytes);
  return std::max<std::size_t>(1, size / units.unit_bytes) * units.unit_bytes;
}

}  // namespace

DriverQueue::~DriverQueue() {
  if (context_ == nullptr) return;
  // Results do not matter: nothing can be done about them.
  driver_.set_context(context_);
  if (stream_ != nullptr) driver_.synchronize(stream_);
  for (Slot& slot : slots_) {
    if (slot.event != nullptr) driver_.destroy_event(slot.event);
  }
  if (memory_ != nullptr) driver_.free_host(memory_);
  if (stream_ != nullptr) driver_.destroy_stream(stream_);
  driver_.release_context(device_);
}

Status DriverQueue::Open(int device) {
  device_ = device;
  KVCACHE_RETURN_IF_ERROR(Check(driver_.retain_context(&context_, device), "opening the device"));
  KVCACHE_RETURN_IF_ERROR(Enter());
  KVCACHE_RETURN_IF_ERROR(Check(driver_.create_stream(&stream_, kNonBlocking), "making a queue"));
  void* memory = nullptr;
  KVCACHE_RETURN_IF_ERROR(
      Check(driver_.allocate_host(&memory, kSlots * kSlotBytes, 0), "taking page-locked memory"));
  memory_ = static_cast<std::byte*>(memory);
  for (std::size_t i = 0; i < kSlots; ++i) {
    slots_[i].memory = memory_ + i * kSlotBytes;
    KVCACHE_RETURN_IF_ERROR(
        Check(driver_.create_event(&slots_[i].event, kWithoutTimes), "making an event"));
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

Status DriverQueue::Mark(Slot& slot) {
  const int result = driver_.record_event(slot.event, stream_);
  // Without a mark, the slot's copies may still be on the way.
  if (result != kDriverOk) driver_.synchronize(stream_);
  slot.pending = result == kDriverOk;
  return Check(result, "marking a copy");
}

Status DriverQueue::WaitFor(Slot& slot) {
  if (!slot.pending) return Status::Ok();
  slot.pending = false;
  return Check(driver_.wait_for_event(slot.event), "waiting for a copy");
}

Result<DriverQueue::Slot*> DriverQueue::TakeRoom(std::size_t bytes) {
  if (slots_[current_].used + bytes > kSlotBytes) {
    KVCACHE_RETURN_IF_ERROR(Mark(slots_[current_]));
    current_ = (current_ + 1) % kSlots;
    slots_[current_].used = 0;
  }
  KVCACHE_RETURN_IF_ERROR(WaitFor(slots_[current_]));
  return &slots_[current_];
}

void DriverQueue::FreeAll() {
  for (Slot& slot : slots_) {
    slot.used = 0;
    slot.pending = false;
  }
}

Status DriverQueue::CopyIn(std::span<const std::byte> from, DriverAddress to) {
  if (from.size() > kCopyUnitBytes) {
    const FillUnit fill = [&](std::size_t unit, std::span<std::byte> at) {
      std::memcpy(at.data(), from.data() + unit * kCopyUnitBytes, at.size());
    };
    return CopyInUnits({from.size(), kCopyUnitBytes}, fill, to);
  }
  KVCACHE_RETURN_IF_ERROR(Enter());
  if (from.empty()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(Slot* const slot, TakeRoom(from.size()));
  std::byte* const at = slot->memory + slot->used;
  std::memcpy(at, from.data(), from.size());
  slot->used += AlignedUp(from.size());
  return Check(driver_.copy_in(to, at, from.size(), stream_), "copying to the device");
}

Status DriverQueue::CopyInUnits(const LinkUnits& units, const FillUnit& fill, DriverAddress to) {
  KVCACHE_RETURN_IF_ERROR(Enter());
  constexpr std::size_t kParts = 8;
  const std::size_t size = PieceBytes(units, kParts);
  for (std::size_t done = 0; done < units.bytes; done += size) {
    const std::size_t bytes = std::min(size, units.bytes - done);
    KVCACHE_ASSIGN_OR_RETURN(Slot* const slot, TakeRoom(bytes));
    const std::span<std::byte> piece(slot->memory + slot->used, bytes);
    ForEachUnit(pool_, units, piece, done / units.unit_bytes, fill);
    slot->used += AlignedUp(bytes);
    KVCACHE_RETURN_IF_ERROR(Check(driver_.copy_in(to + done, piece.data(), piece.size(), stream_),
                                  "copying to the device"));
  }
  return Status::Ok();
}

Status DriverQueue::CopyOut(DriverAddress from, std::span<std::byte> to) {
  const TakeUnit take = [&](std::size_t unit, std::span<const std::byte> at) {
    std::memcpy(to.data() + unit * kCopyUnitBytes, at.data(), at.size());
  };
  return CopyOutUnits(from, {to.size(), kCopyUnitBytes}, take);
}

Status DriverQueue::CopyOutUnits(DriverAddress from, const LinkUnits& units, const TakeUnit& take) {
  if (units.bytes == 0) return Synchronize();
  KVCACHE_RETURN_IF_ERROR(Enter());
  // The slots behind the current one are used in turns, so that a copy to the device that is on the way keeps its own.
  constexpr std::size_t kParts = 16;
  const std::size_t size = PieceBytes(units, kParts);
  const std::size_t pieces = (units.bytes + size - 1) / size;
  constexpr std::size_t kAhead = kSlots - 2;
  const auto slot_of = [&](std::size_t i) -> Slot& {
    return slots_[(current_ + 1 + i % (kSlots - 1)) % kSlots];
  };
  const auto size_of = [&](std::size_t i) { return std::min(size, units.bytes - i * size); };
  // Pieces arrive in slots while the host takes an earlier one from another slot.
  for (std::size_t i = 0; i < pieces + kAhead; ++i) {
    if (i < pieces) {
      Slot& slot = slot_of(i);
      KVCACHE_RETURN_IF_ERROR(WaitFor(slot));
      KVCACHE_RETURN_IF_ERROR(
          Check(driver_.copy_out(slot.memory, from + i * size, size_of(i), stream_),
                "copying from the device"));
      KVCACHE_RETURN_IF_ERROR(Mark(slot));
    }
    if (i < kAhead || i - kAhead >= pieces) continue;
    const std::size_t taken = i - kAhead;
    Slot& slot = slot_of(taken);
    KVCACHE_RETURN_IF_ERROR(WaitFor(slot));
    const std::span<const std::byte> piece(slot.memory, size_of(taken));
    ForEachUnit(pool_, units, piece, taken * (size / units.unit_bytes), take);
  }
  FreeAll();
  return Status::Ok();
}

Status DriverQueue::Synchronize() {
  KVCACHE_RETURN_IF_ERROR(Enter());
  KVCACHE_RETURN_IF_ERROR(Check(driver_.synchronize(stream_), "waiting for the device"));
  FreeAll();
  return Status::Ok();
}

}  // namespace kvcache::cuda
