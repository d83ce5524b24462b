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

  // Adds the products of 16 inputs; of the first ones, if only `count` of the thread's exist.
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
class FloatFew {
 public:
  // Columns from `columns` on are copies of the last one, and are not stored.
  KVCACHE_DEVICE FloatFew(const LinearTask& task, int row, int first_column, int columns)
      : inputs_(task.inputs), stride_(static_cast<int>(RowStride(task.inputs))) {
    const int last = task.outputs - 1;
    w_ = reinterpret_cast<const Four*>(task.weights) +
         static_cast<std::int64_t>(row < last ? row : last) * (stride_ / 4) + part();
    KVCACHE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const int column = first_column + (c < columns ? c : columns - 1);
      x_[c] = task.columns_x + static_cast<std::int64_t>(column) * inputs_ + 4 * part();
    }
    aligned_ = inputs_ % 4 == 0 && IsAligned16(task.columns_x);
  }

  // Computes the outputs of all columns: each of the four threads gets them. The first weights, which no kernel writes,
  // are loaded before the inputs are there.
  KVCACHE_DEVICE void Run(float (&y)[kColumns]) {
    FourLanes sums[kColumns];
    int k = 0;
    if (aligned_ && inputs_ >= kStep) {
      Four ahead[kSteps];
      KVCACHE_UNROLL
      for (int i = 0; i < kSteps; ++i) ahead[i] = LoadConstant(w_ + i * 4);
      WaitForEarlier();
      KVCACHE_UNROLL_BY(1)
      for (; k + 2 * kStep <= inputs_; k += kStep) AddStep<true>(ahead, sums);
      AddStep<false>(ahead, sums);
      k += kStep;
    } else {
      WaitForEarlier();
    }
    KVCACHE_UNROLL_BY(1)
    for (; k < stride_; k += 16) AddRest(k, sums);
    KVCACHE_UNROLL
    for (int c = 0; c < kColumns; ++c) y[c] = sums[c].Fold();
  }

  static KVCACHE_DEVICE int part() { return Thread() % 4; }

 private:
  using Four = typename Stored::Four;
  // Steps of 16 inputs, whose weights are loaded ahead. 128 bytes of them made one column half as fast on an H200.
  static constexpr int kSteps = 64 / static_cast<int>(sizeof(Four));
  static constexpr int kStep = kSteps * 16;

  // Adds kStep inputs, whose weights are in `ahead`, and loads the next ones.
  template <bool kLoads>
  KVCACHE_DEVICE void AddStep(Four (&ahead)[kSteps], FourLanes (&sums)[kColumns]) {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      float w[4];
      Stored::Widen(ahead[i], w);
      if constexpr (kLoads) ahead[i] = LoadConstant(w_ + (kSteps + i) * 4);
      KVCACHE_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const Words4 four = LoadOnly(reinterpret_cast<const Words4*>(x_[c] + i * 16));
        const float x[4] = {FloatOf(four.at[0]), FloatOf(four.at[1]), FloatOf(four.at[2]),
                            FloatOf(four.at[3])};
        sums[c].Add(w, x);
      }
    }
    Move(kSteps);
  }

  // Adds 16 inputs from `k` on, or those that are left.
  KVCACHE_DEVICE void AddRest(int k, FourLanes (&sums)[kColumns]) {
    float w[4];
    Stored::Widen(LoadConstant(w_), w);
    const int count = inputs_ - k - 4 * part();
    KVCACHE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      float x[4];
      LoadInputs(x_[c], 0, count, aligned_, x);
      sums[c].AddFirst(w, x, count);
    }
    Move(1);
  }

  KVCACHE_DEVICE void Move(int steps) {
    w_ += steps * 4;
    KVCACHE_UNROLL
    for (int c = 0; c < kColumns; ++c) x_[c] += steps * 16;
  }

  int inputs_;
  int stride_;
  bool aligned_;
  const Four* w_;             // this thread's next weights
  const float* x_[kColumns];  // this thread's next inputs
};

template <class Stored, int kColumns>
KVCACHE_DEVICE void MultiplyFloatFew(const LinearArgs& args) {
  using Kernel = FloatFew<Stored, kColumns>;
  // Kernels may have written a list in memory.
  if (args.tasks.all != nullptr) WaitForEarlier();
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles = (task.columns + kColumns - 1) / kColumns;
  const int index = BlockX() - task.first_block;
  const int first_column = index % tiles * kColumns;
  const int row = index / tiles * (kFloatFewThreads / 4) + Thread() / 4;
  const int left = task.columns - first_column;
  const int columns = left < kColumns ? left : kColumns;
  float y[kColumns];
  Kernel(task, row, first_column, columns).Run(y);
  if (Kernel::part() != 0 || row >= task.outputs) return;
  KVCACHE_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    if (c < columns) {
      task.y[static_cast<std::int64_t>(first_column + c) * task.outputs + row] = y[c];
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
        aligned_(task.inputs % 4 == 0 && IsAligned16(task.columns_x)) {
    const int own_row = row + Thread() / 8;
    const int last = task.outputs - 1;
    w_ = reinterpret_cast<const Four*>(task.weights) +
         static_cast<std::int64_t>(own_row < last ? own_row : last) * (stride_ / 4) + Thread() % 8;
    // Rows and columns that are not there are copies of the last one, and are not stored.
    const int own_column = column + Thread() / 8;
    const int last_column = task.columns - 1;
    x_ = task.columns_x +
         static_cast<std::int64_t>(own_column < last_column ? own_column : last_column) *
             task.inputs +
         Thread() % 8 * 4;
  }

  KVCACHE_DEVICE void Run() {
    FloatManyMemory& memory = SharedMemory<FloatManyMemory>();
    FourLanes sums[4][4];  // [row][column]
    Ahead ahead;
    Load(0, ahead);
    Put(ahead, memory.slabs[0]);
    int at = 0;
    int k = 0;
    KVCACHE_UNROLL_BY(1)
    for (; k + kInputs <= task_.inputs; k += kInputs) {
      BlockBarrier();
      const bool has_next = k + kInputs < task_.inputs;
      if (has_next) Load(k + kInputs, ahead);
      KVCACHE_UNROLL
      for (int step = 0; step < kInputs; step += 16) {
        MultiplyStep<true>(memory.slabs[at], step, 16, sums);
      }
      at = 1 - at;
      if (has_next) Put(ahead, memory.slabs[at]);
    }
    if (k < task_.inputs) {
      BlockBarrier();
      KVCACHE_UNROLL_BY(1)
      for (int step = 0; k + step < task_.inputs; step += 16) {
        MultiplyStep<false>(memory.slabs[at], step, task_.inputs - k - step, sums);
      }
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

  // Loads the slab from input `k` on, where w_ and x_ stand, and moves them on.
  KVCACHE_DEVICE void Load(int k, Ahead& to) {
    const int from = k + Thread() % 8 * 4;
    to.w = Four{};
    if (from < stride_) to.w = LoadConstant(w_);
    if (Thread() / 8 < kFloatManyColumns) {
      LoadInputs(x_, 0, task_.inputs - from, aligned_, to.x);
    }
    w_ += kInputs / 4;
    x_ += kInputs;
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

  // Adds 16 inputs of the slab, or the first `count`.
  template <bool kAll>
  static KVCACHE_DEVICE void MultiplyStep(const Slab& slab, int step, int count,
                                          FourLanes (&sums)[4][4]) {
    const int lanes = Thread() % 4 * 4;
    float w[4][4];
    float x[4][4];
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      TakeFour(&slab.w[quad_row() + kQuadRows * i][step + lanes], w[i]);
      TakeFour(&slab.x[quad_column() + kQuadColumns * i][step + lanes], x[i]);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < 16; ++i) {
      FourLanes& sum = sums[i / 4][i % 4];
      if constexpr (kAll) {
        sum.Add(w[i / 4], x[i % 4]);
      } else {
        sum.AddFirst(w[i / 4], x[i % 4], count - lanes);
      }
    }
  }

  LinearTask task_;
  int row_;
  int column_;
  int stride_;
  bool aligned_;
  const Four* w_;
  const float* x_;
};

template <class Stored>
KVCACHE_DEVICE void MultiplyFloatMany(const LinearArgs& args) {
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles = (task.columns + kFloatManyColumns - 1) / kFloatManyColumns;
  const int index = BlockX() - task.first_block;
  FloatMany<Stored>(task, index / tiles * kFloatManyRows, index % tiles * kFloatManyColumns).Run();
}

}  // namespace kvcache::cuda::linear
