#include "tensor/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/strings.h"
#include "tensor/float_conversion.h"

namespace kvcache {
namespace {

constexpr std::size_t kBlock = 32;

template <typename T>
void Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// std::round without a call per value, so that the compiler turns the loop into vectors.
std::int8_t RoundHalfAway(float x) {
  const auto whole = static_cast<std::int32_t>(x);
  const float rest = x - static_cast<float>(whole);  // exact
  const std::int32_t up = rest >= 0.5f ? 1 : 0;
  const std::int32_t down = rest <= -0.5f ? 1 : 0;
  return static_cast<std::int8_t>(whole + up - down);
}

// False, with nothing written, if a value is not finite.
bool QuantizeBlock(const float* values, std::byte* out) {
  constexpr float kMost = std::numeric_limits<float>::max();
  float largest = 0.0f;
  bool finite = true;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float magnitude = std::fabs(values[i]);
    finite &= magnitude <= kMost;
    largest = std::max(largest, magnitude);
  }
  if (!finite) return false;
  const float d = largest / 127.0f;
  // Where 1/d overflows, f16(d) is zero whatever the quants are.
  const float inverse = d >= 0x1p-127f ? 1.0f / d : 0.0f;
  std::int8_t q[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i) q[i] = RoundHalfAway(values[i] * inverse);
  Store(out, F32ToF16(d));
  std::memcpy(out + sizeof(std::uint16_t), q, sizeof(q));
  return true;
}

Status QuantizeBlocks(std::span<const float> values, std::span<std::byte> out) {
  for (std::size_t i = 0; i < values.size() / kBlock; ++i) {
    if (QuantizeBlock(&values[kBlock * i], &out[34 * i])) continue;
    return {StatusCode::kInvalidArgument,
            StrCat("values ", kBlock * i, " to ", kBlock * (i + 1) - 1,
                   ": q8_0 cannot hold one that is not finite")};
  }
  return Status::Ok();
}

void DequantizeBlock(const std::byte* bytes, float* out) {
  const float d = F16ToF32(Load<std::uint16_t>(bytes));
  for (std::size_t i = 0; i < kBlock; ++i) {
    out[i] = d * static_cast<float>(Load<std::int8_t>(bytes + sizeof(std::uint16_t) + i));
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

}  // namespace

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
    case DType::kQ8_0: return QuantizeBlocks(values, out);
    case DType::kI8:
    case DType::kI32: break;
  }
  return NotReal(type);
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
    case DType::kQ8_0:
      for (std::size_t i = 0; i < n / kBlock; ++i)
        DequantizeBlock(&bytes[34 * i], &out[kBlock * i]);
      return Status::Ok();
    case DType::kI8:
    case DType::kI32: break;
  }
  return NotReal(type);
}

}  // namespace kvcache
