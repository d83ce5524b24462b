#include "backend/cpu/ops/copy_values.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "backend/cpu/common/kv_storage.h"
#include "tensor/float_conversion.h"

namespace kvcache::cpu {
namespace {

// The size of a task: for less, starting other threads costs more than it saves.
constexpr std::int64_t kPieceValues = 1 << 16;

std::string Describe(const TensorView& view) {
  std::string text = std::string(InfoOf(view.dtype).name) + " [";
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(view.dims[i]);
  }
  return text + "]";
}

float Load(DType type, const std::byte* base, std::int64_t i) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, base + 4 * i, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, base + 2 * i, sizeof(bits));
  return type == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

void Store(DType type, std::byte* base, std::int64_t i, float value) {
  if (type == DType::kF32) {
    std::memcpy(base + 4 * i, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = type == DType::kF16 ? F32ToF16(value) : F32ToBf16(value);
  std::memcpy(base + 2 * i, &bits, sizeof(bits));
}

// Copies the values [begin, end) of one row.
void CopyRow(const TensorView& from, const TensorView& to, const std::byte* source,
             std::byte* target, std::int64_t begin, std::int64_t end) {
  if (from.dtype == to.dtype) {
    const std::int64_t bytes = InfoOf(from.dtype).block_bytes;
    std::memcpy(target + begin * bytes, source + begin * bytes,
                static_cast<std::size_t>((end - begin) * bytes));
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    Store(to.dtype, target, i, Load(from.dtype, source, i));
  }
}

std::int64_t RowOffset(const TensorView& view, std::int64_t row) {
  const std::int64_t second = row / view.dims[1];
  return row % view.dims[1] * view.stride_bytes[1] + second % view.dims[2] * view.stride_bytes[2] +
         second / view.dims[2] * view.stride_bytes[3];
}

bool Dense(const TensorView& view) {
  const TensorView dense = TensorView::Dense(view.data, view.dtype, view.dims[0], view.dims[1],
                                             view.dims[2], view.dims[3]);
  for (int i = 1; i < TensorView::kMaxRank; ++i) {
    if (view.dims[i] > 1 && view.stride_bytes[i] != dense.stride_bytes[i]) return false;
  }
  return true;
}

// Returns the whole tensor as one row. REQUIRES: `view` is dense.
TensorView Flat(const TensorView& view) {
  return TensorView::Dense(view.data, view.dtype, view.elements());
}

void CopyRows(ThreadPool& pool, const TensorView& from, const TensorView& to) {
  const std::int64_t width = from.dims[0];
  const std::int64_t pieces = (width + kPieceValues - 1) / kPieceValues;
  const std::int64_t rows = from.dims[1] * from.dims[2] * from.dims[3];
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kPieceValues / width);
  const std::int64_t groups = (rows + rows_at_once - 1) / rows_at_once;
  pool.ParallelFor(groups * pieces, [&](std::int64_t task, int) {
    const std::int64_t begin = task % pieces * kPieceValues;
    const std::int64_t first = task / pieces * rows_at_once;
    for (std::int64_t row = first; row < std::min(first + rows_at_once, rows); ++row) {
      CopyRow(from, to, from.data + RowOffset(from, row), to.data + RowOffset(to, row), begin,
              std::min(begin + kPieceValues, width));
    }
  });
}

}  // namespace

Status CheckCopyValues(const TensorView& from, const TensorView& to) {
  if (!IsKvType(from.dtype) || !IsKvType(to.dtype)) {
    return {StatusCode::kUnsupported, "copy of " + Describe(from) + " to " + Describe(to) +
                                          ": types must be f32, f16 or bf16"};
  }
  if (from.dims != to.dims) {
    return {StatusCode::kInvalidArgument,
            "copy of " + Describe(from) + " to " + Describe(to) + ": sizes must be equal"};
  }
  if (from.stride_bytes[0] != InfoOf(from.dtype).block_bytes ||
      to.stride_bytes[0] != InfoOf(to.dtype).block_bytes) {
    return {StatusCode::kInvalidArgument,
            "copy of " + Describe(from) + " to " + Describe(to) + ": rows must be dense"};
  }
  return Status::Ok();
}

Status CopyValues(ThreadPool& pool, const TensorView& from, const TensorView& to) {
  KVCACHE_RETURN_IF_ERROR(CheckCopyValues(from, to));
  if (from.elements() == 0) return Status::Ok();
  if (Dense(from) && Dense(to)) {
    CopyRows(pool, Flat(from), Flat(to));
  } else {
    CopyRows(pool, from, to);
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
