#include "backend/cuda/ops/rope.h"

#include <algorithm>

#include "backend/cpu/ops/rope.h"
#include "backend/cuda/kv/argument_list.h"
#include "backend/cuda/ops/rope_kernels.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kAngles{"rope_angles", kRopeThreads};
constexpr Kernel kRotate{"rotate_heads", kRopeThreads, KernelPart::kRotate};

std::int64_t BlocksForThreads(std::int64_t threads) {
  return (threads + kRopeThreads - 1) / kRopeThreads;
}

}  // namespace

bool RopeTables::Holds(const Entry& entry, std::span<const Position> positions,
                       const RopeParams& rope) {
  return entry.magnitude == rope.magnitude && std::ranges::equal(entry.positions, positions) &&
         std::ranges::equal(entry.inv_freq, rope.inv_freq);
}

RopeTables::Table RopeTables::TableOf(const Entry& entry) {
  const auto* const values = reinterpret_cast<const float*>(entry.values->data());
  return {values, values + entry.positions.size() * entry.inv_freq.size()};
}

Status RopeTables::Fill(Device& device, CallMemory& memory, std::span<const Position> positions,
                        const RopeParams& rope, Entry& entry) {
  const std::size_t angles = positions.size() * rope.inv_freq.size();
  const std::size_t bytes = 2 * angles * sizeof(float);
  if (entry.values == nullptr || entry.values->size_bytes() < bytes) {
    entry.values.reset();
    KVCACHE_ASSIGN_OR_RETURN(entry.values, device.Allocate(bytes));
  }
  auto* const values = reinterpret_cast<float*>(entry.values->data());
  KVCACHE_ASSIGN_OR_RETURN(const auto at,
                           MakeList<decltype(AngleArgs::positions)>(memory, positions));
  KVCACHE_ASSIGN_OR_RETURN(const auto inv_freq,
                           MakeList<decltype(AngleArgs::inv_freq)>(memory, rope.inv_freq));
  const AngleArgs args{.positions = at,
                       .inv_freq = inv_freq,
                       .cosines = values,
                       .sines = values + angles,
                       .tokens = static_cast<std::int64_t>(positions.size()),
                       .pairs = static_cast<std::int32_t>(rope.inv_freq.size()),
                       .magnitude = rope.magnitude};
  KVCACHE_RETURN_IF_ERROR(
      Launch(device, kAngles, {.x = BlocksForThreads(static_cast<std::int64_t>(angles))}, args));
  entry.positions.assign(positions.begin(), positions.end());
  entry.inv_freq.assign(rope.inv_freq.begin(), rope.inv_freq.end());
  entry.magnitude = rope.magnitude;
  return Status::Ok();
}

Result<RopeTables::Table> RopeTables::Find(Device& device, CallMemory& memory,
                                           std::span<const Position> positions,
                                           const RopeParams& rope) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!Holds(entries_[i], positions, rope)) continue;
    last_used_ = i;
    return TableOf(entries_[i]);
  }
  last_used_ = 1 - last_used_;
  Entry& entry = entries_[last_used_];
  entry.positions.clear();  // until the new table is there, the entry holds none
  KVCACHE_RETURN_IF_ERROR(Fill(device, memory, positions, rope, entry));
  return TableOf(entry);
}

Status Rope(Device& device, CallMemory& memory, RopeTables& tables, const TensorView& x,
            std::span<const Position> positions, const RopeParams& rope) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckRope(x, positions, rope));
  const std::int64_t pairs = rope.dims / 2;
  if (pairs == 0 || x.elements() == 0) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const RopeTables::Table table,
                           tables.Find(device, memory, positions, rope));
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t blocks = BlocksForThreads(pairs * x.dims[1]);
  const RotateArgs args{.x = x.as<float>() + rope.first,
                        .cosines = table.cosines,
                        .sines = table.sines,
                        .token_stride = x.stride_bytes[2] / kFloat,
                        .head_stride = x.stride_bytes[1] / kFloat,
                        .heads = static_cast<std::int32_t>(x.dims[1]),
                        .pairs = static_cast<std::int32_t>(pairs),
                        .blocks = static_cast<std::int32_t>(blocks),
                        .interleaved = rope.pairing == RopeParams::Pairing::kInterleaved};
  return Launch(device, kRotate, {.x = blocks * x.dims[2]}, args);
}

}  // namespace kvcache::cuda
