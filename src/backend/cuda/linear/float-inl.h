// Products with float weights: 16 virtual lanes. Four neighbouring threads hold the lanes of an output, four
// each, and so the inputs that they read are neighbours. The tree that folds the lanes is two shuffles and
// two additions.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/linear/task-inl.h"
#include "backend/cuda/linear/words.h"

namespace kvcache::cuda::linear {

// How the values of a type are stored: four of them in memory, and as floats.
struct StoredF32 {
  using Four = Words4;
  static KVCACHE_DEVICE void Widen(const Four& four, float (&values)[4]) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) values[i] = FloatOf(four.at[i]);
  }
};
struct StoredF16 {
  using Four = Words2;
  static KVCACHE_DEVICE void Widen(const Four& four, float (&values)[4]) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      values[i] = FromHalf(static_cast<std::uint16_t>(four.row[i / 2] >> i % 2 * 16));
    }
  }
};
struct StoredBF16 {
  using Four = Words2;
  static KVCACHE_DEVICE void Widen(const Four& four, float (&values)[4]) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      values[i] = FloatOf(i % 2 == 0 ? four.row[i / 2] << 16 : four.row[i / 2] & 0xffff0000u);
    }
  }
};

// The four lanes of a thread.
struct FourLanes {
  float at[4] = {};

  // Adds the products of 16 inputs, of which the first `count` exist for this thread's lanes.
  KVCACHE_DEVICE void Add(const float (&w)[4], const float (&x)[4]) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) at[i] = Fma(w[i], x[i], at[i]);
  }
  KVCACHE_DEVICE void AddFirst(const float (&w)[4], const float (&x)[4], int count) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < count) at[i] = Fma(w[i], x[i], at[i]);
    }
  }
  // Returns the sum of all 16 lanes to all four threads.
  KVCACHE_DEVICE float Fold() const {
    float lanes[4];
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      // A sum of two floats does not depend on their order.
      const float eight = cuda::Add(at[i], ShuffleXor(at[i], 2));
      lanes[i] = cuda::Add(eight, ShuffleXor(eight, 1));
    }
    return cuda::Add(cuda::Add(lanes[0], lanes[2]), cuda::Add(lanes[1], lanes[3]));
  }
};

// Four inputs of a column from `k` on; what lies behind the last one is zero.
KVCACHE_DEVICE void LoadInputs(const float* x, int k, int inputs, bool aligned, float (&to)[4]) {
  if (aligned && k + 4 <= inputs) {
    const Words4 four = LoadOnly(reinterpret_cast<const Words4*>(x + k));
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = FloatOf(four.at[i]);
    return;
  }
  KVCACHE_UNROLL
  for (int i = 0; i < 4; ++i) to[i] = k + i < inputs ? LoadOnly(x + k + i) : 0.0f;
}

KVCACHE_DEVICE bool IsAligned16(const float* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

// ---- Few columns: four threads take a row

template <class Stored, int kColumns>
KVCACHE_DEVICE void MultiplyFloatFew(const LinearArgs& args) {
  using Four = typename Stored::Four;
  constexpr int kSteps =
      64 / static_cast<int>(sizeof(Four));  // of 16 inputs, that are loaded ahead
  const LinearTask task = TaskOfBlock(args.tasks);
  const int tiles = (task.columns + kColumns - 1) / kColumns;
  const int index = BlockX() - task.first_block;
  const int first_column = index % tiles * kColumns;
  const int row = index / tiles * (kFloatFewThreads / 4) + Thread() / 4;
  const int part = Thread() % 4;
  const int last_row = task.outputs - 1;
  const int stride = static_cast<int>(RowStride(task.inputs));
  const Four* const w = reinterpret_cast<const Four*>(task.weights) +
                        static_cast<std::int64_t>(row < last_row ? row : last_row) * (stride / 4) +
                        part;
  const int left = task.columns - first_column;
  const int columns = left < kColumns ? left : kColumns;
  const float* const x = task.columns_x + static_cast<std::int64_t>(first_column) * task.inputs;
  const bool aligned = task.inputs % 4 == 0 && IsAligned16(task.columns_x);

  FourLanes sums[kColumns];
  const auto add = [&](const Four& four, int k) {
    float weights[4];
    Stored::Widen(four, weights);
    KVCACHE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      if (c >= columns) break;
      float inputs[4];
      LoadInputs(x + static_cast<std::int64_t>(c) * task.inputs, k + 4 * part, task.inputs, aligned,
                 inputs);
      if (k + 16 <= task.inputs) {
        sums[c].Add(weights, inputs);
      } else {
        sums[c].AddFirst(weights, inputs, task.inputs - k - 4 * part);
      }
    }
  };
  Four ahead[kSteps] = {};
  KVCACHE_UNROLL
  for (int i = 0; i < kSteps; ++i) {
    if (i * 16 < stride) ahead[i] = LoadOnly(w + i * 4);
  }
  for (int k = 0; k < stride; k += kSteps * 16) {
    Four now[kSteps];
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      now[i] = ahead[i];
      const int next = k + (kSteps + i) * 16;
      if (next < stride) ahead[i] = LoadOnly(w + next / 4);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      if (k + i * 16 < stride) add(now[i], k + i * 16);
    }
  }
  KVCACHE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const float sum = sums[c].Fold();
    if (part == 0 && c < columns && row < task.outputs) {
      task.y[static_cast<std::int64_t>(first_column + c) * task.outputs + row] = sum;
    }
  }
}

// ---- Many columns: four threads take 4 rows × 4 columns of a tile of 64 × 32

struct FloatManyMemory {
  struct alignas(16) Slab {
    float w[kFloatManyRows][kFloatManyStride];
    float x[kFloatManyColumns][kFloatManyStride];
  };
  Slab slabs[2];
};
static_assert(sizeof(FloatManyMemory) == kFloatManyBytes);

template <class Stored>
class FloatMany {
 public:
  KVCACHE_DEVICE FloatMany(const LinearTask& task, int row, int column)
      : task_(task),
        row_(row),
        column_(column),
        stride_(static_cast<int>(RowStride(task.inputs))),
        aligned_(task.inputs % 4 == 0 && IsAligned16(task.columns_x)) {}

  KVCACHE_DEVICE void Run() const {
    FloatManyMemory& memory = SharedMemory<FloatManyMemory>();
    FourLanes sums[4][4];  // [row][column]
    Ahead ahead;
    Load(0, ahead);
    Put(ahead, memory.slabs[0]);
    int at = 0;
    for (int k = 0; k < stride_; k += kInputs) {
      BlockBarrier();
      if (k + kInputs < stride_) Load(k + kInputs, ahead);
      Multiply(memory.slabs[at], k, sums);
      at = 1 - at;
      if (k + kInputs < stride_) Put(ahead, memory.slabs[at]);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      KVCACHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i][j].Fold();
        const int row = row_ + quad_row() + kQuadRows * i;
        const int column = column_ + quad_column() + kQuadColumns * j;
        if (Thread() % 4 == 0 && row < task_.outputs && column < task_.columns) {
          task_.y[static_cast<std::int64_t>(column) * task_.outputs + row] = sum;
        }
      }
    }
  }

 private:
  using Four = typename Stored::Four;
  using Slab = FloatManyMemory::Slab;
  static constexpr int kInputs = kFloatManyInputs;
  static constexpr int kQuadRows = kFloatManyRows / 4;
  static constexpr int kQuadColumns = kFloatManyColumns / 4;

  // What a thread loads of a slab: four weights, and four inputs.
  struct Ahead {
    Four w;
    float x[4];
  };

  // A warp has 4 × 2 outputs of its four threads.
  static KVCACHE_DEVICE int quad_row() { return Warp() / 4 * 4 + Lane() / 8; }
  static KVCACHE_DEVICE int quad_column() { return Warp() % 4 * 2 + Lane() / 4 % 2; }

  KVCACHE_DEVICE void Load(int k, Ahead& to) const {
    const int from = k + Thread() % 8 * 4;
    const int row = row_ + Thread() / 8;
    const int last = task_.outputs - 1;
    to.w = Four{};
    if (from < stride_) {
      to.w = LoadOnly(reinterpret_cast<const Four*>(task_.weights) +
                      (static_cast<std::int64_t>(row < last ? row : last) * stride_ + from) / 4);
    }
    const int column = column_ + Thread() / 8;
    KVCACHE_UNROLL
    for (float& value : to.x) value = 0.0f;
    if (Thread() / 8 < kFloatManyColumns && column < task_.columns) {
      LoadInputs(task_.columns_x + static_cast<std::int64_t>(column) * task_.inputs, from,
                 task_.inputs, aligned_, to.x);
    }
  }

  static KVCACHE_DEVICE void Put(const Ahead& from, Slab& to) {
    float w[4];
    Stored::Widen(from.w, w);
    PutFour(w, &to.w[Thread() / 8][Thread() % 8 * 4]);
    if (Thread() / 8 < kFloatManyColumns) PutFour(from.x, &to.x[Thread() / 8][Thread() % 8 * 4]);
  }
  static KVCACHE_DEVICE void PutFour(const float (&values)[4], float* to) {
    Words4 words;
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) words.at[i] = BitsOf(values[i]);
    *reinterpret_cast<Words4*>(to) = words;
  }
  static KVCACHE_DEVICE void TakeFour(const float* from, float (&values)[4]) {
    const Words4 words = *reinterpret_cast<const Words4*>(from);
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) values[i] = FloatOf(words.at[i]);
  }

  KVCACHE_DEVICE void Multiply(const Slab& slab, int k, FourLanes (&sums)[4][4]) const {
    KVCACHE_UNROLL
    for (int step = 0; step < kInputs; step += 16) {
      const int from = step + Thread() % 4 * 4;
      const int rest = task_.inputs - k - step;
      if (rest <= 0) break;
      float w[4][4];
      float x[4][4];
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        TakeFour(&slab.w[quad_row() + kQuadRows * i][from], w[i]);
        TakeFour(&slab.x[quad_column() + kQuadColumns * i][from], x[i]);
      }
      KVCACHE_UNROLL
      for (int i = 0; i < 16; ++i) {
        FourLanes& sum = sums[i / 4][i % 4];
        if (rest >= 16) {
          sum.Add(w[i / 4], x[i % 4]);
        } else {
          sum.AddFirst(w[i / 4], x[i % 4], rest - Thread() % 4 * 4);
        }
      }
    }
  }

  LinearTask task_;
  int row_;
  int column_;
  int stride_;
  bool aligned_;
};

template <class Stored>
KVCACHE_DEVICE void MultiplyFloatMany(const LinearArgs& args) {
  const LinearTask task = TaskOfBlock(args.tasks);
  const int tiles = (task.columns + kFloatManyColumns - 1) / kFloatManyColumns;
  const int index = BlockX() - task.first_block;
  FloatMany<Stored>(task, index / tiles * kFloatManyRows, index % tiles * kFloatManyColumns).Run();
}

}  // namespace kvcache::cuda::linear
