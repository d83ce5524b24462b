// Float linear layers for few tokens: reads the rows of the weights in place and multiplies them.
#include <algorithm>
#include <cstring>

#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/linear_float_rows.cc"
#include "hwy/foreach_target.h"
// After it, so that it compiles once per target.
#include "backend/cpu/common/prefetch-inl.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu::flt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one idea, two files

// A tile's sums stay in registers: 4 rows × 6 tokens × 16 lanes with 32 registers. With 16 registers, one
// token has 4 rows × 16 lanes. Several tokens have 4 rows × 3 tokens × one register of lanes, so a tile
// passes its inputs once for each register of lanes, and a converted weight serves three tokens.
inline constexpr int kTileRows = 4;
inline constexpr int kTileTokens = kRegs == 1 ? 6 : 3;
constexpr int RegsAtOnce(int tokens) {
  return tokens == 1 ? kRegs : 1;
}

// Several tokens take this many inputs of the rows before the next ones. The weights then stay in the
// first-level cache for all tiles, and the inputs of a tile for all of its passes. With 32 registers a
// weight serves so many products that whole rows are faster.
inline constexpr std::int64_t kChunk = kRegs == 1 ? std::int64_t{1} << 32 : 1024;
// The sums of this many tokens wait from chunk to chunk.
inline constexpr std::int64_t kMaxTokens = kMinPanelTokens - 1;

// A copy of the last inputs, which do not fill 16 lanes, in memory where 16 can be read.
template <class Loader>
struct Tail {
  alignas(64) typename Loader::Stored values[kVirtualLanes];
  Tail(const typename Loader::Stored* source, std::int64_t count) {
    std::memset(static_cast<void*>(values), 0, sizeof(values));
    std::memcpy(static_cast<void*>(values), source,
                static_cast<std::size_t>(count) * sizeof(values[0]));
  }
};

// The values of a cache line.
template <class Loader>
inline constexpr std::int64_t kLineValues =
    64 / static_cast<std::int64_t>(sizeof(typename Loader::Stored));

// The memory that is read after the rows of a tile, in lines. All passes over the rows prefetch a part
// of it, in ascending order: memory delivers one stream faster than one per row. The second-level
// cache takes it, since the first level has no room.
class NextRows {
 public:
  // `lines` of them are prefetched at once.
  NextRows(const void* begin, std::int64_t lines)
      : at_(reinterpret_cast<std::uintptr_t>(begin)), end_(at_), lines_(lines) {}

  // Allows `bytes` more to be prefetched.
  void Extend(std::int64_t bytes) { end_ += static_cast<std::uintptr_t>(bytes); }
  HWY_INLINE void Prefetch() {
    if (at_ >= end_) return;
    for (std::int64_t i = 0; i < lines_; ++i, at_ += 64) PrefetchToL2(at_);
  }

 private:
  std::uintptr_t at_;
  std::uintptr_t end_;
  std::int64_t lines_;
};

// The operands of a tile: its rows, and the columns of its tokens.
template <class Loader, int kRows, int kTokens>
struct Tile {
  const typename Loader::Stored* row[kRows];
  const float* x[kTokens];

  HWY_INLINE Tile(const Weights& w, std::int64_t row_begin, const float* columns) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      row[r] =
          reinterpret_cast<const typename Loader::Stored*>(w.rows) + (row_begin + r) * w.inputs;
    }
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) x[t] = columns + t * w.inputs;
  }
};

template <int kTokens, int kRows>
using TileSums = Lanes16[kTokens][kRows];

template <class Loader, int kRows, int kTokens>
HWY_INLINE void AddTails(const Tile<Loader, kRows, kTokens>& tile, std::int64_t inputs,
                         TileSums<kTokens, kRows>& sum) {
  const std::int64_t begin = inputs / kVirtualLanes * kVirtualLanes;
  const int count = static_cast<int>(inputs - begin);
  for (int r = 0; r < kRows; ++r) {
    const Tail<Loader> w(tile.row[r] + begin, count);
    for (int t = 0; t < kTokens; ++t) {
      const Tail<LoadF32> v(tile.x[t] + begin, count);
      MulAddFirstLanes<Loader, LoadF32>(w.values, v.values, count, sum[t][r]);
    }
  }
}

// Keeps a sum of a single token in its register: GCC adds to a copy otherwise, and moves it back. With
// several tokens it would move sums to the stack instead.
template <int kTokens>
HWY_INLINE void KeepInRegister(VF& sum) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_GCC
  if constexpr (kTokens == 1) asm("" : "+x"(sum.raw));
#endif
  (void)sum;
}

// Multiplies 16 inputs of each row with each token, in the registers [kReg, kReg + kCount) of lanes.
template <int kReg, int kCount, class Loader, int kRows, int kTokens>
HWY_INLINE void AddStep(const Tile<Loader, kRows, kTokens>& tile, std::int64_t k,
                        VF (&sum)[kTokens][kRows][kCount]) {
  const DF d;
  KVCACHE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t at = k + (kReg + i) * kLanes;
    VF v[kTokens];
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) v[t] = hn::LoadU(d, tile.x[t] + at);
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const VF w = Loader::Load(d, tile.row[r] + at);
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        sum[t][r][i] = hn::MulAdd(w, v[t], sum[t][r][i]);
        KeepInRegister<kTokens>(sum[t][r][i]);
      }
    }
  }
}

// A pass over the inputs [begin, end), whole steps of 16, that adds to the registers
// [kReg, kReg + kCount) of the lanes in `sum`.
template <int kReg, int kCount, class Loader, int kRows, int kTokens>
HWY_INLINE void AddInputs(const Tile<Loader, kRows, kTokens>& tile, std::int64_t begin,
                          std::int64_t end, NextRows& next, TileSums<kTokens, kRows>& sum) {
  VF part[kTokens][kRows][kCount];
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int i = 0; i < kCount; ++i) part[t][r][i] = sum[t][r].r[kReg + i];
    }
  }
  NextRows ahead = next;  // a copy, which stays in registers
  std::int64_t k = begin;
  for (; k + kLineValues<Loader> <= end; k += kLineValues<Loader>) {
    ahead.Prefetch();
    KVCACHE_UNROLL
    for (int s = 0; s < kLineValues<Loader>; s += kVirtualLanes) {
      AddStep<kReg, kCount>(tile, k + s, part);
    }
  }
  next = ahead;
  for (; k < end; k += kVirtualLanes) AddStep<kReg, kCount>(tile, k, part);
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int i = 0; i < kCount; ++i) sum[t][r].r[kReg + i] = part[t][r][i];
    }
  }
}

// All passes over the inputs [begin, end).
template <int kReg, class Loader, int kRows, int kTokens>
HWY_INLINE void AddLanes(const Tile<Loader, kRows, kTokens>& tile, std::int64_t begin,
                         std::int64_t end, NextRows& next, TileSums<kTokens, kRows>& sum) {
  constexpr int kCount = RegsAtOnce(kTokens);
  AddInputs<kReg, kCount>(tile, begin, end, next, sum);
  if constexpr (kReg + kCount < kRegs) AddLanes<kReg + kCount>(tile, begin, end, next, sum);
}

// A chunk of inputs of a tile. The first one starts the sums, the last one writes y.
template <class Loader, int kRows, int kTokens>
void MultiplyTile(const Weights& w, const float* x, std::int64_t row_begin, std::int64_t begin,
                  NextRows& next, Lanes16* waiting, float* y) {
  const std::int64_t whole = w.inputs / kVirtualLanes * kVirtualLanes;
  const Tile<Loader, kRows, kTokens> tile(w, row_begin, x);
  auto& sum = *reinterpret_cast<TileSums<kTokens, kRows>*>(waiting);
  const std::int64_t end = std::min(begin + (kTokens == 1 ? whole : kChunk), whole);
  if (begin == 0) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) sum[t][r] = ZeroLanes();
    }
  }
  AddLanes<0>(tile, begin, end, next, sum);
  if (end < whole) return;
  if (w.inputs % kVirtualLanes != 0) AddTails(tile, w.inputs, sum);
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) y[t * w.outputs + row_begin + r] = FoldLanes(sum[t][r]);
  }
}

// Calls the kernel with the tile's size as a compile-time constant.
template <class Loader, int kRows, int kTokens>
HWY_INLINE void MultiplyTileOf(std::int64_t tokens, const Weights& w, const float* x,
                               std::int64_t row_begin, std::int64_t begin, NextRows& next,
                               Lanes16* waiting, float* y) {
  if (tokens == kTokens) {
    MultiplyTile<Loader, kRows, kTokens>(w, x, row_begin, begin, next, waiting, y);
  } else if constexpr (kTokens > 1) {
    MultiplyTileOf<Loader, kRows, kTokens - 1>(tokens, w, x, row_begin, begin, next, waiting, y);
  }
}

// Multiplies kRows rows with all tokens, at most kMaxTokens.
template <class Loader, int kRows>
void MultiplyRowGroup(const Weights& w, const float* x, std::int64_t tokens, std::int64_t row_begin,
                      float* y) {
  using Stored = typename Loader::Stored;
  const TokenTiles tiles(tokens, kTileTokens);
  const std::int64_t chunk = tokens == 1 ? w.inputs : kChunk;
  const std::int64_t passes = tiles.count() * (tokens == 1 ? 1 : kRegs);
  NextRows next(reinterpret_cast<const Stored*>(w.rows) + (row_begin + kRows) * w.inputs,
                (kRows + passes - 1) / passes);
  Lanes16 waiting[kMaxTokens * kRows];
  std::int64_t begin = 0;
  do {
    next.Extend(kRows * std::min(chunk, w.inputs - begin) *
                static_cast<std::int64_t>(sizeof(Stored)));
    for (std::int64_t i = 0; i < tiles.count(); ++i) {
      const std::int64_t token = tiles.Begin(i);
      MultiplyTileOf<Loader, kRows, kTileTokens>(tiles.Size(i), w, x + token * w.inputs, row_begin,
                                                 begin, next, waiting + token * kRows,
                                                 y + token * w.outputs);
    }
    begin += chunk;
  } while (begin < w.inputs / kVirtualLanes * kVirtualLanes);
}

template <class Loader>
void MultiplyRowsOf(const Weights& w, const float* x, std::int64_t tokens, float* y,
                    std::int64_t begin, std::int64_t end) {
  std::int64_t row = begin;
  for (; row + kTileRows <= end; row += kTileRows) {
    MultiplyRowGroup<Loader, kTileRows>(w, x, tokens, row, y);
  }
  for (; row < end; ++row) MultiplyRowGroup<Loader, 1>(w, x, tokens, row, y);
}

void MultiplyRows(const Weights& w, const float* x, std::int64_t tokens, float* y,
                  std::int64_t begin, std::int64_t end) {
  switch (w.dtype) {
    case DType::kF16: return MultiplyRowsOf<LoadF16>(w, x, tokens, y, begin, end);
    case DType::kBF16: return MultiplyRowsOf<LoadBF16>(w, x, tokens, y, begin, end);
    default: return MultiplyRowsOf<LoadF32>(w, x, tokens, y, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::flt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::flt {

HWY_EXPORT(MultiplyRows);

void MultiplyRows(const Weights& w, const float* x, std::int64_t tokens, float* y,
                  std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(w, x, tokens, y, begin, end);
}

}  // namespace kvcache::cpu::flt
#endif  // HWY_ONCE
