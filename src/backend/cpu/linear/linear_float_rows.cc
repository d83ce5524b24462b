// Float linear layers for few tokens: reads the rows of the weights in place and multiplies them.
#include <algorithm>
#include <cstring>

#include "backend/cpu/attention/token_tiles.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/linear_float_rows.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After it, so that it compiles once per target.
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu::flt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one idea, two files

// A tile's sums stay in registers: 4 rows × 6 tokens with 32 registers, fewer with 16.
inline constexpr int kTileRows = 4;
inline constexpr int kTileTokens = kRegs == 1 ? 6 : 1;

// The distance of the prefetch within a row, or, near its end, in the row that is read after it:
// the hardware's prefetchers start again with each row. Far enough for memory's latency, near
// enough that the line is still in the first-level cache when it is used.
inline constexpr std::int64_t kPrefetchBytes = 2048;

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

template <class Loader, int kRows, int kTokens>
HWY_INLINE void AddTails(const typename Loader::Stored* const (&row)[kRows],
                         const float* const (&x)[kTokens], std::int64_t inputs,
                         Lanes16 (&sum)[kRows][kTokens]) {
  const std::int64_t begin = inputs / kVirtualLanes * kVirtualLanes;
  const int count = static_cast<int>(inputs - begin);
  for (int r = 0; r < kRows; ++r) {
    const Tail<Loader> w(row[r] + begin, count);
    for (int t = 0; t < kTokens; ++t) {
      const Tail<LoadF32> v(x[t] + begin, count);
      MulAddFirstLanes<Loader, LoadF32>(w.values, v.values, count, sum[r][t]);
    }
  }
}

// Multiplies kRows rows × kTokens tokens, with lanes along the inputs.
template <class Loader, int kRows, int kTokens>
HWY_INLINE void MultiplyTile(const Weights& w, const float* x, std::int64_t row_begin, float* y) {
  using Stored = typename Loader::Stored;
  const DF d;
  const Stored* row[kRows];
  const float* column[kTokens];
  Lanes16 sum[kRows][kTokens];
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    row[r] = reinterpret_cast<const Stored*>(w.rows) + (row_begin + r) * w.inputs;
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) sum[r][t] = ZeroLanes();
  }
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) column[t] = x + t * w.inputs;
  const std::int64_t distance = std::min<std::int64_t>(w.inputs, kPrefetchBytes / sizeof(Stored));
  // As many steps at once as a cache line holds, so that each line is prefetched once.
  constexpr std::int64_t kLineSteps =
      std::max<std::int64_t>(1, 64 / (kVirtualLanes * sizeof(Stored)));
  const auto step = [&](std::int64_t k) HWY_ATTR {
    KVCACHE_UNROLL
    for (int i = 0; i < kRegs; ++i) {
      VF values[kRows];
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) values[r] = Loader::Load(d, row[r] + k + i * kLanes);
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const VF v = hn::LoadU(d, column[t] + k + i * kLanes);
        KVCACHE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum[r][t].r[i] = hn::MulAdd(values[r], v, sum[r][t].r[i]);
        }
      }
    }
  };
  std::int64_t k = 0;
  for (; k + kLineSteps * kVirtualLanes <= w.inputs; k += kLineSteps * kVirtualLanes) {
    const std::int64_t ahead =
        k < w.inputs - distance ? distance : distance + (kRows - 1) * w.inputs;
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) hwy::Prefetch(row[r] + k + ahead);
    KVCACHE_UNROLL
    for (int s = 0; s < kLineSteps; ++s) step(k + s * kVirtualLanes);
  }
  for (; k + kVirtualLanes <= w.inputs; k += kVirtualLanes) step(k);
  if (w.inputs % kVirtualLanes != 0) AddTails<Loader>(row, column, w.inputs, sum);
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) y[t * w.outputs + row_begin + r] = FoldLanes(sum[r][t]);
  }
}

// Calls the kernel with the tile's size as compile-time constants.
template <class Loader, int kRows, int kTokens>
void MultiplyTileOf(const Weights& w, const float* x, std::int64_t tokens, std::int64_t row_begin,
                    float* y) {
  if (tokens == kTokens) {
    MultiplyTile<Loader, kRows, kTokens>(w, x, row_begin, y);
  } else if constexpr (kTokens > 1) {
    MultiplyTileOf<Loader, kRows, kTokens - 1>(w, x, tokens, row_begin, y);
  }
}

template <class Loader>
void MultiplyRowsOf(const Weights& w, const float* x, std::int64_t tokens, float* y,
                    std::int64_t begin, std::int64_t end) {
  const TokenTiles tiles(tokens, kTileTokens);
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t rows = end - row >= kTileRows ? kTileRows : 1;
    for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
      const std::int64_t token = tiles.Begin(tile);
      const float* const tile_x = x + token * w.inputs;
      float* const tile_y = y + token * w.outputs;
      if (rows == kTileRows) {
        MultiplyTileOf<Loader, kTileRows, kTileTokens>(w, tile_x, tiles.Size(tile), row, tile_y);
      } else {
        MultiplyTileOf<Loader, 1, kTileTokens>(w, tile_x, tiles.Size(tile), row, tile_y);
      }
    }
    row += rows;
  }
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
