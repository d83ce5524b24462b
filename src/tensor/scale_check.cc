#include "tensor/scale_check.h"

#include <cstring>
#include <string>

#include "base/errors.h"

namespace kvcache {
namespace {

// Returns the bits of a block's scale, an f16 or MXFP4's exponent.
unsigned ScaleOf(DType dtype, const std::byte* block) {
  if (dtype == DType::kMXFP4) return static_cast<unsigned>(block[0]);
  std::uint16_t half;
  std::memcpy(&half, block, sizeof(half));
  return half;
}

bool IsRefused(DType dtype, unsigned scale) {
  if (dtype == DType::kMXFP4) return scale > kLargestMxfp4Exponent;
  return (scale & 0x7fffU) == 0x7c00U;
}

}  // namespace

std::int64_t FindRefusedScale(DType dtype, std::span<const std::byte> row) {
  switch (dtype) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kIQ4_NL:
    case DType::kMXFP4: break;
    default: return -1;
  }
  const auto size = static_cast<std::size_t>(InfoOf(dtype).block_bytes);
  for (std::size_t block = 0; block < row.size() / size; ++block) {
    if (IsRefused(dtype, ScaleOf(dtype, row.data() + block * size))) {
      return static_cast<std::int64_t>(block);
    }
  }
  return -1;
}

Status RefuseScale(DType dtype, std::span<const std::byte> row, std::int64_t block) {
  const unsigned scale = ScaleOf(dtype, row.data() + block * InfoOf(dtype).block_bytes);
  const std::string what = "block " + std::to_string(block) + " of " +
                           std::string(InfoOf(dtype).name) + ": the scale is ";
  if (dtype == DType::kMXFP4) {
    return Corrupt(what + "2^" + std::to_string(static_cast<int>(scale) - 127) +
                   "; must be at most 2^103");
  }
  return Corrupt(what + (scale == 0x7c00U ? "" : "-") + "infinity; must be finite");
}

}  // namespace kvcache
