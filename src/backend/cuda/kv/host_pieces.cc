#include "backend/cuda/kv/host_pieces.h"

#include <algorithm>
#include <cstring>

namespace kvcache::cuda {

template <class Body>
void HostPieces::ForEach(std::size_t begin, std::size_t size, const Body& body) const {
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                       [](std::size_t value, const Piece& piece) { return value < piece.begin; });
  for (auto piece = after - 1; piece != pieces_.end() && piece->begin < begin + size; ++piece) {
    const std::size_t first = std::max(begin, piece->begin);
    const std::size_t end = std::min(begin + size, piece->begin + piece->memory.size());
    body(piece->memory.subspan(first - piece->begin, end - first), first - begin);
  }
}

Status HostPieces::CopyIn(Device& device, std::byte* at) const {
  const FillUnit fill = [this](std::size_t unit, std::span<std::byte> to) {
    ForEach(unit * kCopyUnitBytes, to.size(),
            [to](std::span<const std::byte> part, std::size_t offset) {
              std::memcpy(to.data() + offset, part.data(), part.size());
            });
  };
  return device.CopyInUnits({bytes_, kCopyUnitBytes}, fill, at);
}

Status HostPieces::CopyOut(Device& device, const std::byte* at) const {
  const TakeUnit take = [this](std::size_t unit, std::span<const std::byte> from) {
    ForEach(unit * kCopyUnitBytes, from.size(),
            [from](std::span<std::byte> part, std::size_t offset) {
              std::memcpy(part.data(), from.data() + offset, part.size());
            });
  };
  return device.CopyOutUnits(at, {bytes_, kCopyUnitBytes}, take);
}

}  // namespace kvcache::cuda
