#include "backend/cuda/shim/device_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace kvcache::cuda::shim {
namespace {

// Addresses cost nothing: those of a freed allocation are not used again for long.
constexpr std::size_t kAddressBytes = std::size_t{1} << 35;
constexpr std::size_t kPageBytes = 4096;
// Before and behind a block's shared memory; keeps its alignment.
constexpr std::size_t kSharedGap = std::size_t{1} << 16;
constexpr std::size_t kCellsPerByte = sizeof(Cell);
constexpr std::size_t kWordBytes = 4;

std::size_t RoundUp(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t shared_bytes)
    : data_(kAddressBytes),
      words_(kAddressBytes / kWordBytes * kCellsPerByte),
      single_(kAddressBytes * kCellsPerByte),
      piece_sizes_(kAddressBytes / kPieceBytes * sizeof(std::uint16_t)),
      shared_data_(kSharedGap + shared_bytes + kSharedGap),
      shared_words_(shared_bytes / kWordBytes * kCellsPerByte + kCellsPerByte),
      shared_single_(shared_bytes * kCellsPerByte),
      pieces_(reinterpret_cast<std::uint16_t*>(piece_sizes_.data())) {
  global_ = {reinterpret_cast<std::uintptr_t>(data_.data()), kAddressBytes,
             reinterpret_cast<Cell*>(words_.data()), reinterpret_cast<Cell*>(single_.data())};
  shared_ = {reinterpret_cast<std::uintptr_t>(shared_data_.data()) + kSharedGap, shared_bytes,
             reinterpret_cast<Cell*>(shared_words_.data()),
             reinterpret_cast<Cell*>(shared_single_.data())};
}

std::byte* DeviceMemory::Allocate(std::size_t bytes) {
  const std::size_t room = RoundUp(bytes, kPageBytes) + kGap;
  // The first place from next_ on that is far enough from all others.
  auto after = allocations_.lower_bound(next_);
  while (true) {
    if (next_ + room > kAddressBytes) {
      next_ = kGap;
      after = allocations_.begin();
    }
    if (after == allocations_.end() || next_ + room <= after->first) break;
    next_ = RoundUp(after->first + after->second.bytes, kPageBytes) + kGap;
    ++after;
  }
  const std::size_t offset = next_;
  next_ += room;
  allocations_[offset] = {bytes, ++count_};
  SetPieces(offset, bytes, true);
  used_ += bytes;
  return data_.data() + offset;
}

void DeviceMemory::Free(std::byte* at) {
  const auto allocation = allocations_.find(static_cast<std::size_t>(at - data_.data()));
  SetPieces(allocation->first, allocation->second.bytes, false);
  Drop(allocation->first, RoundUp(allocation->second.bytes, kPageBytes));
  used_ -= allocation->second.bytes;
  allocations_.erase(allocation);
}

void DeviceMemory::Drop(std::size_t offset, std::size_t bytes) {
  data_.Drop(offset, bytes);
  words_.Drop(offset / kWordBytes * kCellsPerByte, bytes / kWordBytes * kCellsPerByte);
  single_.Drop(offset * kCellsPerByte, bytes * kCellsPerByte);
}

void DeviceMemory::SetPieces(std::size_t offset, std::size_t bytes, bool usable) {
  for (std::size_t done = 0; done < bytes; done += kPieceBytes) {
    const std::size_t size = std::min(kPieceBytes, bytes - done);
    pieces_[(offset + done) / kPieceBytes] = static_cast<std::uint16_t>(usable ? size : 0);
  }
}

void DeviceMemory::Mark(std::byte* at, std::size_t bytes, MemoryUse use) {
  const auto offset = static_cast<std::size_t>(at - data_.data());
  SetPieces(offset, bytes, use == MemoryUse::kUndefined);
  if (use != MemoryUse::kUndefined) return;
  // All ones: a NaN in every float type.
  if (bytes > 0) std::memset(at, 0xff, bytes);
  const Cell unwritten = {kNoWrite, 0};
  std::fill_n(global_.words + offset / kWordBytes, (bytes + kWordBytes - 1) / kWordBytes,
              unwritten);
}

bool DeviceMemory::Holds(const std::byte* at, std::size_t bytes) const {
  if (bytes == 0) return true;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(at) - global_.low;
  if (first >= kAddressBytes || bytes > kAddressBytes - first) return false;
  for (std::size_t offset = first; offset < first + bytes;) {
    const std::size_t in_piece = offset % kPieceBytes;
    const std::size_t size = std::min(kPieceBytes - in_piece, first + bytes - offset);
    if (in_piece + size > pieces_[offset / kPieceBytes]) return false;
    offset += size;
  }
  return true;
}

bool DeviceMemory::IsWritten(std::size_t offset) const {
  const Record word = global_.words[offset / kWordBytes].write;
  const Record write = word == kSplit ? global_.single[offset].write : word;
  return (write & kStateMask) != kNoWrite;
}

void DeviceMemory::SetByte(std::size_t offset, Record write) {
  Cell& word = global_.words[offset / kWordBytes];
  if (word.write != kSplit) {
    std::fill_n(global_.single + offset / kWordBytes * kWordBytes, kWordBytes, word);
    word.write = kSplit;
  }
  global_.single[offset] = {write, 0};
}

void DeviceMemory::SetWritten(const std::byte* at, std::size_t bytes) {
  const std::size_t first = reinterpret_cast<std::uintptr_t>(at) - global_.low;
  const std::size_t end = first + bytes;
  const std::size_t first_word = (first + kWordBytes - 1) / kWordBytes;
  const std::size_t end_word = end / kWordBytes;
  if (first_word < end_word) {
    std::fill(global_.words + first_word, global_.words + end_word, Cell{});
  }
  for (std::size_t i = first; i < std::min(end, first_word * kWordBytes); ++i) SetByte(i, 0);
  for (std::size_t i = std::max(first, end_word * kWordBytes); i < end; ++i) SetByte(i, 0);
}

void DeviceMemory::CopyWritten(const std::byte* from, const std::byte* to, std::size_t bytes) {
  const std::size_t source = reinterpret_cast<std::uintptr_t>(from) - global_.low;
  const std::size_t target = reinterpret_cast<std::uintptr_t>(to) - global_.low;
  std::vector<bool> written(bytes);
  for (std::size_t i = 0; i < bytes; ++i) written[i] = IsWritten(source + i);
  SetWritten(to, bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!written[i]) SetByte(target + i, kNoWrite);
  }
}

void DeviceMemory::BeginLaunch() {
  // A launch that needs more than 2^30 stamps would take hours.
  if (stamp_ < 3U << 30) return;
  for (Mapping* const cells : {&words_, &single_, &shared_words_, &shared_single_}) {
    cells->Drop(0, cells->size());
  }
  stamp_ = 0;
}

std::string DeviceMemory::Describe(std::uintptr_t address) const {
  const std::size_t in_shared = address - shared_.low;
  if (in_shared < shared_.bytes + kSharedGap) {
    return "offset " + std::to_string(in_shared) + " of the block's shared memory";
  }
  if (shared_.low - address <= kSharedGap) {
    return std::to_string(shared_.low - address) + " bytes before the block's shared memory";
  }
  const std::size_t offset = address - global_.low;
  if (offset >= kAddressBytes) return {};
  const auto after = allocations_.upper_bound(offset);
  const auto bytes_text = [](std::size_t bytes) { return std::to_string(bytes) + " bytes"; };
  const auto name = [&](const Allocation& allocation) {
    return "allocation " + std::to_string(allocation.number) + " (" + bytes_text(allocation.bytes) +
           ")";
  };
  if (after != allocations_.begin()) {
    const auto& [begin, allocation] = *std::prev(after);
    if (offset < begin + RoundUp(allocation.bytes, kPageBytes) + kGap / 2) {
      return "offset " + std::to_string(offset - begin) + " of " + name(allocation);
    }
  }
  if (after != allocations_.end() && after->first - offset <= kGap) {
    return bytes_text(after->first - offset) + " before " + name(after->second);
  }
  return "device memory that is not allocated";
}

}  // namespace kvcache::cuda::shim
