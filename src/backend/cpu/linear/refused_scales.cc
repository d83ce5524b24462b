#include "backend/cpu/linear/refused_scales.h"

#include <cstddef>
#include <span>
#include <string>

#include "tensor/scale_check.h"

namespace kvcache::cpu {
namespace {

std::span<const std::byte> BytesOfRow(const TensorView& w, std::int64_t row) {
  const std::int64_t bytes = BytesOf(w.dtype, w.dims[0]);
  return {w.data + row * bytes, static_cast<std::size_t>(bytes)};
}

}  // namespace

void RefusedScales::CheckRows(std::int64_t row, std::int64_t end) {
  std::int64_t first = first_.load();
  for (; row < end && row < first; ++row) {
    if (FindRefusedScale(w_.dtype, BytesOfRow(w_, row)) < 0) continue;
    while (row < first && !first_.compare_exchange_weak(first, row)) {
    }
    return;
  }
}

Status RefusedScales::status() const {
  const std::int64_t row = first_.load();
  if (row == w_.dims[1] * w_.dims[2]) return Status::Ok();
  const std::string matrix =
      w_.dims[2] > 1 ? "matrix " + std::to_string(row / w_.dims[1]) + ", " : std::string();
  const std::span<const std::byte> values = BytesOfRow(w_, row);
  return RefuseScale(w_.dtype, values, FindRefusedScale(w_.dtype, values))
      .WithContext("linear: " + matrix + "row " + std::to_string(row % w_.dims[1]));
}

}  // namespace kvcache::cpu
