#include "backend/cuda/joined/joined_kernels.h"

#include "backend/cuda/kv/store-inl.h"
#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/quantize-inl.h"
#include "backend/cuda/ops/activation-inl.h"
#include "backend/cuda/ops/norms-inl.h"
#include "backend/cuda/ops/rope-inl.h"

namespace kvcache::cuda {
namespace {

// The thread's vectors of a row, all loaded before the first is used.
struct RowVectors {
  Four vectors[kThreadVectors];

  KVCACHE_DEVICE RowVectors(const float* row, int width) {
    KVCACHE_UNROLL
    for (int i = 0; i < kThreadVectors; ++i) {
      const int k = 4 * (Thread() + i * kNormThreads);
      vectors[i] = {};
      if (k < width) vectors[i] = *reinterpret_cast<const Four*>(row + k);
    }
  }
};

// Leaves the row in shared memory, after the addition.
KVCACHE_DEVICE void AddRow(const JoinedNormArgs& args, std::int64_t row, WideNormMemory& shared) {
  const int width = args.norm.width;
  float* const sum = args.sum + row * args.norm.x_stride;
  RowVectors x(sum, width);
  if (args.added != nullptr) {
    const RowVectors y(args.added + row * width, width);
    KVCACHE_UNROLL
    for (int i = 0; i < kThreadVectors; ++i) {
      const int k = 4 * (Thread() + i * kNormThreads);
      KVCACHE_UNROLL
      for (int j = 0; j < 4; ++j) x.vectors[i].v[j] = Add(x.vectors[i].v[j], y.vectors[i].v[j]);
      if (k < width) *reinterpret_cast<Four*>(sum + k) = x.vectors[i];
    }
  }
  KVCACHE_UNROLL
  for (int i = 0; i < kThreadVectors; ++i) {
    const int k = 4 * (Thread() + i * kNormThreads);
    if (k < width) *reinterpret_cast<Four*>(shared.values + k) = x.vectors[i];
  }
}

// kSteps as in QuantizeChunk; 0: the result is not quantised.
template <int kSteps>
KVCACHE_DEVICE void NormRow(const JoinedNormArgs& args, std::int64_t row,
                            const WeightsAhead& weights) {
  WideNormMemory& shared = SharedMemory<WideNormMemory>();
  const int width = args.norm.width;
  AddRow(args, row, shared);
  BlockBarrier();
  float lane = 0.0f;
  if (Thread() < kNormLanes) {
    KVCACHE_UNROLL_BY(16)
    for (int k = Thread(); k < width; k += kNormLanes) {
      lane = RmsNormRule::Sum(lane, shared.values[k]);
    }
  }
  const float result = FoldRow<RmsNormRule>(args.norm, lane, shared);
  float* const y = args.norm.y + row * args.norm.y_stride;
  KVCACHE_UNROLL
  for (int i = 0; i < kThreadVectors; ++i) {
    const int k = 4 * (Thread() + i * kNormThreads);
    if (k >= width) break;
    Four& value = *reinterpret_cast<Four*>(shared.values + k);
    value = Applied<RmsNormRule>(value, weights.vectors[i], result);
    *reinterpret_cast<Four*>(y + k) = value;
  }
  if constexpr (kSteps > 0) {
    BlockBarrier();
    for (int chunk = Warp(); chunk * 256 < width; chunk += kNormThreads / 32) {
      float x[linear::kLaneInputs];
      const int from = linear::FirstInput(chunk);
      KVCACHE_UNROLL
      for (int i = 0; i < linear::kLaneInputs; ++i) {
        x[i] = from < width ? shared.values[from + i] : 0.0f;
      }
      linear::QuantizeChunk<kSteps>(args.to, chunk, static_cast<int>(row), x);
    }
  }
}

template <int kSteps>
KVCACHE_DEVICE void Norm(const JoinedNormArgs& args) {
  const std::int64_t row = BlockX();
  if (row < args.norm.rows) {
    const WeightsAhead weights(args.norm);
    WaitForEarlier();
    return NormRow<kSteps>(args, row, weights);
  }
  WaitForEarlier();
  if constexpr (kSteps > 0) {
    const float zeros[linear::kLaneInputs] = {};
    for (int chunk = Warp(); chunk * 256 < args.norm.width; chunk += kNormThreads / 32) {
      linear::QuantizeChunk<kSteps>(args.to, chunk, static_cast<int>(row), zeros);
    }
  }
}

template <int kSteps>
KVCACHE_DEVICE void Gate(const JoinedGateArgs& args) {
  const linear::QuantizeTask& task = args.to;
  const int columns = static_cast<int>(linear::TilesOf(task.columns)) * linear::kTileColumns;
  const int index = BlockX() * linear::kQuantizeWarps + Warp();
  const int chunk = index / columns;
  if (chunk * 256 >= task.inputs) return;
  const int column = index % columns;
  const int from = linear::FirstInput(chunk);
  float x[linear::kLaneInputs] = {};
  if (from < task.inputs && column < task.columns) {
    const std::int64_t at = static_cast<std::int64_t>(column) * task.inputs + from;
    auto* const gate = reinterpret_cast<Four*>(args.gate + at);
    const auto* const up = reinterpret_cast<const Four*>(args.up + at);
    Four values[2] = {gate[0], gate[1]};
    const Four ups[2] = {up[0], up[1]};
    WithActivation(args.activation, [&](const auto& activation) {
      KVCACHE_UNROLL
      for (int i = 0; i < linear::kLaneInputs; ++i) {
        float& value = values[i / 4].v[i % 4];
        value = Mul(activation(value), ups[i / 4].v[i % 4]);
        x[i] = value;
      }
    });
    gate[0] = values[0];
    gate[1] = values[1];
  }
  linear::QuantizeChunk<kSteps>(task, chunk, column, x);
}

// Rotates the piece's tokens of `heads` heads from `first` on.
KVCACHE_DEVICE void Rotate(const RotateArgs& args, const StorePiece& piece, int first, int heads) {
  for (int i = Thread(); i < piece.count * heads * args.pairs; i += StoreArgs::kThreads) {
    const int row = i / args.pairs;
    RotatePair(args, piece.token + row / heads, first + row % heads, i - row * args.pairs);
  }
}

}  // namespace

KVCACHE_WAITING_KERNEL(joined_norm, JoinedNormArgs, kNormThreads) {
  Norm<0>(args);
}
KVCACHE_WAITING_KERNEL(joined_norm_16, JoinedNormArgs, kNormThreads) {
  Norm<1>(args);
}
KVCACHE_WAITING_KERNEL(joined_norm_32, JoinedNormArgs, kNormThreads) {
  Norm<2>(args);
}
KVCACHE_WAITING_KERNEL(joined_norm_256, JoinedNormArgs, kNormThreads) {
  Norm<5>(args);
}

KVCACHE_KERNEL(joined_gate_16, JoinedGateArgs, linear::kQuantizeThreads) {
  Gate<1>(args);
}
KVCACHE_KERNEL(joined_gate_32, JoinedGateArgs, linear::kQuantizeThreads) {
  Gate<2>(args);
}
KVCACHE_KERNEL(joined_gate_256, JoinedGateArgs, linear::kQuantizeThreads) {
  Gate<5>(args);
}

KVCACHE_KERNEL(joined_store, JoinedStoreArgs, StoreArgs::kThreads) {
  const StorePiece& piece = args.store.pieces.near[BlockX()];
  if (BlockZ() == 2) return Rotate(args.q, piece, BlockY() * args.group, args.group);
  if (BlockZ() == 0) {
    Rotate(args.k, piece, BlockY(), 1);
    BlockBarrier();
  }
  StoreRows(args.store.sides[BlockZ()], piece, BlockY());
}

}  // namespace kvcache::cuda
