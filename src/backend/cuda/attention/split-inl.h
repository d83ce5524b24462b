// Describes a split for a block: where the cells of its positions are, and which tiles it copies.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// The cell of a position of the task's history, or -1.
KVCACHE_DEVICE std::int32_t CellOf(const AttendRun* runs, std::int32_t count,
                                   std::int32_t position) {
  std::int32_t first = 0;  // runs before it begin at or before the position
  while (count > 0) {
    const std::int32_t half = count / 2;
    const bool before = runs[first + half].position <= position;
    first = before ? first + half + 1 : first;
    count = before ? count - half - 1 : half;
  }
  if (first == 0) return -1;
  const AttendRun run = runs[first - 1];
  const std::int32_t offset = position - run.position;
  return offset < run.length ? run.cell + offset : -1;
}

// How many values or blocks of all slots fit into a stage, and how many stages a head's values take.
struct SlotSteps {
  std::int32_t step;
  std::int32_t stages;
};
KVCACHE_DEVICE SlotSteps StepsOf(KvType type, std::int32_t dim, std::int32_t slots,
                                 std::int32_t stage_bytes) {
  std::int32_t all = dim;
  std::int32_t step = 0;
  if (IsBlockType(type)) {
    all = dim / 32;
    step = stage_bytes / (CodeBytes(type) + kScaleBytes) / slots;
  } else {
    // A slot is longer by one value of its cells than what it holds, so that neighbouring slots are in
    // different banks.
    step = stage_bytes / (kAttendTile * ValueBytes(type)) / slots - 1;
    if (step > 4) step &= ~3;
  }
  step = Smaller(step, all);
  const std::int32_t stages = (all + step - 1) / step;
  if (IsBlockType(type)) step = (all + stages - 1) / stages;  // stages of one length
  return {step, stages};
}

template <class Shape>
KVCACHE_DEVICE void DescribeSlots(const AttendArgs& args, SplitInfo& info, std::int32_t slots) {
  std::int32_t begin = kAttendSplit;
  std::int32_t end = 0;
  std::int32_t retained = 0;
  for (int warp = 0; warp < kAttendWarps; ++warp) {
    std::uint32_t mask = info.retained[warp];
    if (mask == 0) continue;
    retained += PopCount(mask);
    begin = Smaller(begin, warp * 32 + PopCount((mask & (0u - mask)) - 1));
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    end = warp * 32 + PopCount(mask);
  }
  const bool gathered = slots > 0 && (args.tiled == 0 || slots > Shape::kMaxSlots);
  if (gathered) slots = kAttendSplit / kAttendTile;
  info.slots = slots;
  info.gathered = gathered ? 1 : 0;
  info.begin = begin;
  info.end = end;
  info.holes = retained < end - begin ? 1 : 0;
  info.key_step = info.key_stages = info.value_step = info.value_stages = 1;
  if (slots == 0) return;
  const SlotSteps keys = StepsOf(args.k_type, args.k_dim, slots, args.layout.stage_bytes);
  info.key_step = keys.step;
  info.key_stages = keys.stages;
  if (IsBlockType(args.v_type)) {
    const SlotSteps values = StepsOf(args.v_type, args.v_dim, slots, args.layout.stage_bytes);
    info.value_step = values.step;
    info.value_stages = values.stages;
    return;
  }
  const bool tiles = args.values_in_tiles != 0 && !gathered;
  const std::int32_t all = tiles ? slots : end - (begin & ~3);
  info.value_step = tiles ? args.pass_tiles : args.pass_positions;
  info.value_stages = (all + info.value_step - 1) / info.value_step;
}

// Fills `info` for a split of the task; positions that none of its rows sees count as not retained. All threads
// of the block take part.
template <class Shape>
KVCACHE_DEVICE void DescribeSplit(const AttendArgs& args, const AttendTask& task,
                                  std::int32_t split, SplitInfo& info) {
  const int j = Thread();
  const std::int32_t position = split * kAttendSplit + j;
  const bool seen = position >= task.seen_begin && position < task.seen_end;
  const std::int32_t cell = seen ? CellOf(args.runs + task.first_run, task.runs, position) : -1;
  info.cells[j] = cell;
  BlockBarrier();
  const std::int32_t before = j == 0 ? -1 : info.cells[j - 1];
  const bool leader = cell >= 0 && (cell != before + 1 || before < 0 || cell % kAttendTile == 0);
  const std::uint32_t retained = Ballot(cell >= 0);
  const std::uint32_t leaders = Ballot(leader);
  if (Lane() == 0) {
    info.retained[Warp()] = retained;
    info.leaders[Warp()] = leaders;
  }
  BlockBarrier();
  std::int32_t slot = PopCount(leaders & ((1u << Lane()) - 1));
  std::int32_t slots = 0;
  for (int warp = 0; warp < kAttendWarps; ++warp) {
    const int count = PopCount(info.leaders[warp]);
    if (warp < Warp()) slot += count;
    slots += count;
  }
  const bool gathered = args.tiled == 0 || slots > Shape::kMaxSlots;
  const std::int32_t first = j - cell % kAttendTile;  // of a leader's tile
  const std::uint32_t misfits = Ballot(leader && first != slot * kAttendTile);
  if (Lane() == 0) info.misfits[Warp()] = gathered ? 0 : misfits;
  if (!gathered && leader) {
    info.slot_cell[slot] = cell - cell % kAttendTile;
    info.slot_position[slot] = first;
    info.slot_begin[slot] = j;
  }
  if (gathered && j % kAttendTile == 0) {
    info.slot_cell[j / kAttendTile] = 0;
    info.slot_position[j / kAttendTile] = j;
    info.slot_begin[j / kAttendTile] = j;
  }
  if (j == 0) {
    DescribeSlots<Shape>(args, info, slots);
    info.slot_begin[gathered ? kAttendSplit / kAttendTile : slots] = kAttendSplit;
  }
  BlockBarrier();
}

// The position of a slot's cell if it belongs to the slot and is retained, else -1.
KVCACHE_DEVICE std::int32_t PositionIn(const SplitInfo& info, int slot, int lane) {
  const std::int32_t position = info.slot_position[slot] + lane;
  if (position < info.slot_begin[slot] || position >= info.slot_begin[slot + 1]) return -1;
  return info.cells[position] < 0 ? -1 : position;
}

// Whether slot s holds the positions from 16 s on, for all slots.
KVCACHE_DEVICE bool SlotsFit(const SplitInfo& info) {
  std::uint32_t misfits = 0;
  KVCACHE_UNROLL
  for (int warp = 0; warp < kAttendWarps; ++warp) misfits |= info.misfits[warp];
  return misfits == 0;
}

}  // namespace kvcache::cuda
