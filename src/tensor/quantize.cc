#include "tensor/quantize.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/strings.h"
#include "tensor/block_codec.h"
#include "tensor/float_conversion.h"

namespace kvcache {
namespace {

using codec::Load;
using codec::Store;

// The codec of a block type; nullptr for other types.
const codec::BlockCodec* CodecOf(DType type) {
  switch (type) {
    case DType::kQ4_0: return &codec::kQ4_0;
    case DType::kQ4_1: return &codec::kQ4_1;
    case DType::kQ5_0: return &codec::kQ5_0;
    case DType::kQ5_1: return &codec::kQ5_1;
    case DType::kQ8_0: return &codec::kQ8_0;
    case DType::kQ4_K: return &codec::kQ4_K;
    case DType::kQ5_K: return &codec::kQ5_K;
    case DType::kQ6_K: return &codec::kQ6_K;
    case DType::kMXFP4: return &codec::kMXFP4;
    case DType::kQ2_K: return &codec::kQ2_K;
    case DType::kQ3_K: return &codec::kQ3_K;
    case DType::kIQ4_NL: return &codec::kIQ4_NL;
    case DType::kIQ4_XS: return &codec::kIQ4_XS;
    case DType::kIQ3_S: return &codec::kIQ3_S;
    case DType::kIQ3_XXS: return &codec::kIQ3_XXS;
    case DType::kIQ2_S: return &codec::kIQ2_S;
    case DType::kIQ2_XS: return &codec::kIQ2_XS;
    case DType::kIQ2_XXS: return &codec::kIQ2_XXS;
    case DType::kIQ1_S: return &codec::kIQ1_S;
    case DType::kIQ1_M: return &codec::kIQ1_M;
    case DType::kTQ1_0: return &codec::kTQ1_0;
    case DType::kTQ2_0: return &codec::kTQ2_0;
    case DType::kNVFP4: return &codec::kNVFP4;
    default: return nullptr;
  }
}

bool AllFinite(std::span<const float> values) {
  bool finite = true;
  for (const float value : values) {
    finite &= std::fabs(value) <= std::numeric_limits<float>::max();
  }
  return finite;
}

Status EncodeBlocks(DType type, const codec::BlockCodec& block, std::span<const float> values,
                    std::span<std::byte> out) {
  const DTypeInfo info = InfoOf(type);
  const auto size = static_cast<std::size_t>(info.block_size);
  const auto bytes = static_cast<std::size_t>(info.block_bytes);
  for (std::size_t i = 0; i < values.size() / size; ++i) {
    if (!AllFinite(values.subspan(size * i, size))) {
      return {StatusCode::kInvalidArgument,
              StrCat("values ", size * i, " to ", size * (i + 1) - 1, ": ", info.name,
                     " cannot hold one that is not finite")};
    }
    block.encode(&values[size * i], &out[bytes * i]);
  }
  return Status::Ok();
}

void DecodeBlocks(DType type, const codec::BlockCodec& block, std::span<const std::byte> bytes,
                  std::span<float> out) {
  const DTypeInfo info = InfoOf(type);
  const auto size = static_cast<std::size_t>(info.block_size);
  const auto block_bytes = static_cast<std::size_t>(info.block_bytes);
  for (std::size_t i = 0; i < out.size() / size; ++i) {
    block.decode(&bytes[block_bytes * i], &out[size * i]);
  }
}

Status CheckSizes(DType type, std::size_t values, std::size_t bytes) {
  const DTypeInfo info = InfoOf(type);
  const auto block = static_cast<std::size_t>(info.block_size);
  if (values % block == 0 && values / block * static_cast<std::size_t>(info.block_bytes) == bytes) {
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          StrCat(values, " values of type ", info.name, " (blocks of ", info.block_size, " in ",
                 info.block_bytes, " bytes) are not ", bytes, " bytes")};
}

Status NotReal(DType type) {
  return {StatusCode::kUnsupported,
          StrCat("type ", InfoOf(type).name, " is not one that real numbers convert to")};
}

Status ReadOnly(DType type) {
  return {StatusCode::kUnsupported,
          StrCat("type ", InfoOf(type).name, " can be read but not written")};
}

}  // namespace

bool CanQuantize(DType type) {
  const codec::BlockCodec* const block = CodecOf(type);
  return block != nullptr ? block->encode != nullptr : type != DType::kI8 && type != DType::kI32;
}

Status Quantize(DType type, std::span<const float> values, std::span<std::byte> out) {
  KVCACHE_RETURN_IF_ERROR(CheckSizes(type, values.size(), out.size()));
  const std::size_t n = values.size();
  switch (type) {
    case DType::kF32:
      if (n > 0) std::memcpy(out.data(), values.data(), out.size());
      return Status::Ok();
    case DType::kF16:
      for (std::size_t i = 0; i < n; ++i) Store(&out[2 * i], F32ToF16(values[i]));
      return Status::Ok();
    case DType::kBF16:
      for (std::size_t i = 0; i < n; ++i) Store(&out[2 * i], F32ToBf16(values[i]));
      return Status::Ok();
    default: break;
  }
  const codec::BlockCodec* const block = CodecOf(type);
  if (block == nullptr) return NotReal(type);
  return block->encode == nullptr ? ReadOnly(type) : EncodeBlocks(type, *block, values, out);
}

Status Dequantize(DType type, std::span<const std::byte> bytes, std::span<float> out) {
  KVCACHE_RETURN_IF_ERROR(CheckSizes(type, out.size(), bytes.size()));
  const std::size_t n = out.size();
  switch (type) {
    case DType::kF32:
      if (n > 0) std::memcpy(out.data(), bytes.data(), bytes.size());
      return Status::Ok();
    case DType::kF16:
      for (std::size_t i = 0; i < n; ++i) out[i] = F16ToF32(Load<std::uint16_t>(&bytes[2 * i]));
      return Status::Ok();
    case DType::kBF16:
      for (std::size_t i = 0; i < n; ++i) out[i] = Bf16ToF32(Load<std::uint16_t>(&bytes[2 * i]));
      return Status::Ok();
    default: break;
  }
  const codec::BlockCodec* const block = CodecOf(type);
  if (block == nullptr) return NotReal(type);
  DecodeBlocks(type, *block, bytes, out);
  return Status::Ok();
}

}  // namespace kvcache
