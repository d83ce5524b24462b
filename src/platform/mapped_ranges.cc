#include "platform/mapped_ranges.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace kvcache {
namespace {

// Mappings by their first byte's address. It is never destroyed: files that live as long as the program end after it.
struct MappedRanges {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> sizes;
};

MappedRanges& AllMapped() {
  static auto* const all = new MappedRanges;
  return *all;
}

std::uintptr_t AddressOf(std::span<const std::byte> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data());
}

}  // namespace

void NoteMapped(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  MappedRanges& all = AllMapped();
  const std::scoped_lock lock(all.mutex);
  all.sizes[AddressOf(bytes)] = bytes.size();
}

void NoteUnmapped(std::span<const std::byte> bytes) {
  MappedRanges& all = AllMapped();
  const std::scoped_lock lock(all.mutex);
  all.sizes.erase(AddressOf(bytes));
}

bool IsInMappedFile(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  MappedRanges& all = AllMapped();
  const std::scoped_lock lock(all.mutex);
  auto after = all.sizes.upper_bound(AddressOf(bytes));
  if (after == all.sizes.begin()) return false;
  const auto& [begin, size] = *--after;
  const std::size_t offset = AddressOf(bytes) - begin;
  return offset < size && bytes.size() <= size - offset;
}

}  // namespace kvcache
