// A task of attention: for each of its splits, in ascending order, scores, softmax and weighted sums.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/keys-inl.h"
#include "backend/cuda/attention/queries-inl.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/attention/stages-inl.h"
#include "backend/cuda/attention/values-inl.h"
#include "backend/cuda/attention/values_of_blocks-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

template <int R, bool kBlockKeys, bool kBlockValues>
KVCACHE_DEVICE void Attend(const AttendArgs& args) {
  using Shape = AttendShape<R>;
  AttendShared<R>& shared = SharedMemory<AttendShared<R>>();
  auto* const parts = reinterpret_cast<std::uint8_t*>(&shared + 1);
  const AttendLayout& layout = args.layout;
  if (Thread() == 0) shared.task = args.tasks[BlockX()];
  BlockBarrier();
  const AttendTask& task = shared.task;
  Stages<Shape, kBlockKeys, kBlockValues> stages(args, task, shared.infos, parts + layout.stages);

  ListRows<Shape>(args, task, shared);
  BlockBarrier();
  auto* const query = reinterpret_cast<float*>(parts + layout.query);
  const CodedQueries coded{reinterpret_cast<std::int8_t*>(parts + layout.query),
                           reinterpret_cast<float*>(parts + layout.units),
                           reinterpret_cast<std::int32_t*>(parts + layout.starts),
                           layout.code_pitch};
  if constexpr (kBlockKeys) {
    CodeQueries<R, Shape::kQueries>(args, shared.rows,
                                    reinterpret_cast<float*>(parts + layout.transformed), coded);
  } else {
    ScaleQueries<R>(args, shared.rows, query);
  }

  KVCACHE_UNROLL_BY(1)
  for (int i = 0; i < task.splits; ++i) {
    const SplitInfo& info = stages.Info(i);
    if constexpr (kBlockKeys) {
      ScoreBlockKeys<Shape>(args, info, stages, coded, shared);
    } else {
      ScoreFloatKeys<Shape>(args, info, stages, query, shared);
    }
    BlockBarrier();
    const Results results{args.partials + task.partials + i * task.distance, args.partial_floats,
                          task.rows, task.distance == 0};
    WeighRows<Shape>(args, task, info, args.splits[task.first_split + i],
                     results.merge ? nullptr : results.first, shared);
    if constexpr (kBlockValues) {
      auto& digits = *reinterpret_cast<WeightDigits<Shape>*>(parts + layout.digits);
      SumBlockValues<Shape>(args, info, stages, shared, digits, results);
    } else {
      SumFloatValues<Shape>(args, info, stages, shared, results);
    }
  }
  AsyncWait<0>();
  if (task.distance != 0) return;
  BlockBarrier();
  const int r = Thread();
  if (r >= task.rows) return;
  float* const last = args.partials + task.partials + (r + 1) * args.partial_floats - kAttendTile;
  last[0] = shared.max[r];
  last[1] = shared.sum[r];
}

}  // namespace kvcache::cuda
