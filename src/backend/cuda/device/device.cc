#include "backend/cuda/device/device.h"

#include "platform/aligned_buffer.h"

namespace kvcache::cuda {
namespace {

// The host's memory that a copy takes where units are smaller.
constexpr std::size_t kUnitsBytes = std::size_t{8} << 20;

// Returns the bytes of as many whole units as a piece of a copy has.
std::size_t PieceBytes(const LinkUnits& units) {
  const std::size_t many = std::max<std::size_t>(1, kUnitsBytes / units.unit_bytes);
  return std::min(units.bytes, many * units.unit_bytes);
}

}  // namespace

Status Device::CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) {
  const std::size_t size = PieceBytes(units);
  KVCACHE_ASSIGN_OR_RETURN(const AlignedBuffer buffer, AlignedBuffer::Make(size));
  for (std::size_t done = 0; done < units.bytes; done += size) {
    const std::span<std::byte> piece(buffer.data(), std::min(size, units.bytes - done));
    ForEachUnit(pool(), units, piece, done / units.unit_bytes, fill);
    KVCACHE_RETURN_IF_ERROR(CopyIn(piece, to + done));
  }
  return Status::Ok();
}

Status Device::CopyOutUnits(const std::byte* from, const LinkUnits& units, const TakeUnit& take) {
  if (units.bytes == 0) return Synchronize();
  const std::size_t size = PieceBytes(units);
  KVCACHE_ASSIGN_OR_RETURN(const AlignedBuffer buffer, AlignedBuffer::Make(size));
  for (std::size_t done = 0; done < units.bytes; done += size) {
    const std::span<std::byte> piece(buffer.data(), std::min(size, units.bytes - done));
    KVCACHE_RETURN_IF_ERROR(CopyOut(from + done, piece));
    ForEachUnit(pool(), units, piece, done / units.unit_bytes, take);
  }
  return Status::Ok();
}

}  // namespace kvcache::cuda
