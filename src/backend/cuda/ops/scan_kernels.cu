#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/recurrence_kernels.h"
#include "backend/cuda/ops/segments-inl.h"
#include "backend/cuda/ops/vectors.h"
#include "backend/cuda/ops/virtual_lanes-inl.h"

namespace kvcache::cuda {
namespace {

// ---- A column of a head's state

template <int kKeys>
struct RegisterState {
  float values[kKeys];

  KVCACHE_DEVICE static constexpr int keys() { return kKeys; }
  KVCACHE_DEVICE float Get(int k) const { return values[k]; }
  KVCACHE_DEVICE void Set(int k, float value) { values[k] = value; }
};

struct SharedState {
  float* values;
  int count;

  KVCACHE_DEVICE int keys() const { return count; }
  KVCACHE_DEVICE float Get(int k) const { return values[k * kScanThreads]; }
  KVCACHE_DEVICE void Set(int k, float value) { values[k * kScanThreads] = value; }
};

struct GlobalState {
  float* values;
  std::int64_t stride;
  int count;

  KVCACHE_DEVICE int keys() const { return count; }
  KVCACHE_DEVICE float Get(int k) const { return values[k * stride]; }
  KVCACHE_DEVICE void Set(int k, float value) { values[k * stride] = value; }
};

template <class State>
KVCACHE_DEVICE void CopyIn(const float* from, std::int64_t stride, State& state) {
  KVCACHE_UNROLL
  for (int k = 0; k < state.keys(); ++k) state.Set(k, from[k * stride]);
}

template <class State>
KVCACHE_DEVICE void CopyOut(const State& state, float* to, std::int64_t stride) {
  KVCACHE_UNROLL
  for (int k = 0; k < state.keys(); ++k) to[k * stride] = state.Get(k);
}

// ---- A token

template <int kCount>
struct alignas(4 * kCount) Neighbors {
  float v[kCount];
};

// Calls f(k, N) for all keys, four neighbors at a time where there are as many. N is a constant.
template <class State, class F>
KVCACHE_DEVICE void ForNeighbors(const State& state, const F& f) {
  int k = 0;
  KVCACHE_UNROLL
  for (; k + 4 <= state.keys(); k += 4) f(k, Neighbors<4>());
  for (; k < state.keys(); ++k) f(k, Neighbors<1>());
}

// Returns what the state holds under a key.
template <class State>
KVCACHE_DEVICE float HeldUnder(const float* key, const State& state) {
  float held = 0.0f;
  ForNeighbors(state, [&]<int kCount>(int k, Neighbors<kCount>) {
    const auto by = *reinterpret_cast<const Neighbors<kCount>*>(key + k);
    for (int i = 0; i < kCount; ++i) held = Fma(state.Get(k + i), by.v[i], held);
  });
  return held;
}

struct TokenSums {
  float out;
  float held;  // what the new state holds under the next key
};

// state = keep · state + taken · key. The sums run along the keys; kOut and kHeld say which are wanted.
template <bool kOut, bool kHeld, class State>
KVCACHE_DEVICE TokenSums UpdateState(const float* key, const float* query, const float* next_key,
                                     float keep, float taken, State& state) {
  TokenSums sums{0.0f, 0.0f};
  ForNeighbors(state, [&]<int kCount>(int k, Neighbors<kCount>) {
    using Values = Neighbors<kCount>;
    const auto by_key = *reinterpret_cast<const Values*>(key + k);
    Values by_query = {};
    Values by_next = {};
    if constexpr (kOut) by_query = *reinterpret_cast<const Values*>(query + k);
    if constexpr (kHeld) by_next = *reinterpret_cast<const Values*>(next_key + k);
    for (int i = 0; i < kCount; ++i) {
      const float now = Fma(by_key.v[i], taken, Mul(state.Get(k + i), keep));
      state.Set(k + i, now);
      if constexpr (kOut) sums.out = Fma(now, by_query.v[i], sums.out);
      if constexpr (kHeld) sums.held = Fma(now, by_next.v[i], sums.held);
    }
  });
  return sums;
}

// ---- Keys and queries of some tokens, in shared memory

// What a token's keys and queries are multiplied with.
struct Factors {
  float keep;     // g
  float decayed;  // g n_k
  float weight;   // β n_k
  float scale;    // n_q · query_scale
};

struct TokenBuffer {
  float* keys;     // [tokens + 1][row]: the last one is the next token's
  float* queries;  // [tokens][row]
  Factors* factors;
  int row;
};

KVCACHE_DEVICE TokenBuffer BufferAt(int which, int tokens, int k_dim) {
  const int row = (k_dim + 3) / 4 * 4;
  float* const at = &SharedMemory<float>() + which * ScanBufferFloats(k_dim, tokens);
  return {at, at + (tokens + 1) * row, reinterpret_cast<Factors*>(at + (2 * tokens + 1) * row),
          row};
}

// Begins to copy `rows` rows of k_dim values.
KVCACHE_DEVICE void CopyRows(const float* from, std::int64_t stride, int rows, int k_dim,
                             bool vectors, float* to, int row) {
  if (vectors) {
    const int in_row = k_dim / 4;
    for (int i = Lane(); i < rows * in_row; i += kScanThreads) {
      const int r = i / in_row;
      const int k = (i - r * in_row) * 4;
      AsyncCopy16(to + r * row + k, from + r * stride + k);
    }
    return;
  }
  for (int i = Lane(); i < rows * k_dim; i += kScanThreads) {
    const int r = i / k_dim;
    const int k = i - r * k_dim;
    to[r * row + k] = from[r * stride + k];
  }
}

// A warp's column block of a head, for one segment. Pointers are those of its first token.
struct Scan {
  const float* keys;
  const float* queries;
  const float* values;  // of the thread's column
  const float* decays;
  const float* steps;
  float* out;
  float skip;
  int k_dim;
  std::int32_t tokens;
  bool active;  // the thread has a column
};

// A token's decay and step, in the thread with the token's number.
struct Rates {
  float decay;
  float step;
};

// Begins to copy tokens [first, first + count), and the key behind them.
KVCACHE_DEVICE Rates BeginTokens(const ScanArgs& args, const Scan& scan, std::int32_t first,
                                 int count, const TokenBuffer& to) {
  const int keys = first + count < scan.tokens ? count + 1 : count;
  CopyRows(scan.keys + first * args.key_token, args.key_token, keys, scan.k_dim, args.vectors,
           to.keys, to.row);
  if (scan.out != nullptr) {
    CopyRows(scan.queries + first * args.query_token, args.query_token, count, scan.k_dim,
             args.vectors, to.queries, to.row);
  }
  AsyncCommit();
  if (Lane() >= count) return {0.0f, 0.0f};
  const std::int64_t token = first + Lane();
  return {scan.decays[token * args.decay_token], scan.steps[token * args.step_token]};
}

// The warp's sum of squares of a row.
KVCACHE_DEVICE float SquaresOf(const float* row, int k_dim) {
  float low = 0.0f;
  float high = 0.0f;
  for (int k = Lane(); k < k_dim; k += kNormLanes) {
    low = Fma(row[k], row[k], low);
    if (k + kWarpThreads < k_dim) high = Fma(row[k + kWarpThreads], row[k + kWarpThreads], high);
  }
  return FoldNormLanes(low, high);
}

KVCACHE_DEVICE float NormFactor(float squares, float epsilon) {
  return Div(1.0f, Sqrt(Add(squares, epsilon)));
}

// Computes the factors of the tokens in a buffer, thread i those of token i.
template <int kTokens>
KVCACHE_DEVICE void SetFactors(const ScanArgs& args, const Scan& scan, const Rates& rates,
                               int count, const TokenBuffer& buffer) {
  float of_key = 1.0f;
  float of_query = 1.0f;
  if (args.norm_epsilon > 0.0f) {
    float keys = 0.0f;
    float queries = 0.0f;
    KVCACHE_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      if (i >= count) break;
      const float of_i = SquaresOf(buffer.keys + i * buffer.row, scan.k_dim);
      if (Lane() == i) keys = of_i;
      if (scan.out == nullptr) continue;
      const float of_q = SquaresOf(buffer.queries + i * buffer.row, scan.k_dim);
      if (Lane() == i) queries = of_q;
    }
    of_key = NormFactor(keys, args.norm_epsilon);
    of_query = NormFactor(queries, args.norm_epsilon);
  }
  if (Lane() < count) {
    buffer.factors[Lane()] = {rates.decay, Mul(rates.decay, of_key), Mul(rates.step, of_key),
                              Mul(of_query, args.query_scale)};
  }
}

// ---- A segment

// The thread's column of tokens [first, first + count), which are in `buffer`. `held` is what the state
// holds under the first key, with kDelta.
template <bool kOut, bool kDelta, class State>
KVCACHE_DEVICE void ScanTokens(const ScanArgs& args, const Scan& scan, std::int32_t first,
                               int count, const TokenBuffer& buffer, float& value, float& held,
                               State& state) {
  for (int i = 0; i < count; ++i) {
    const std::int32_t t = first + i;
    const float own = value;
    const bool last = t + 1 == scan.tokens;
    if (!last) value = scan.values[(t + 1) * args.value_token];
    const float* const key = buffer.keys + i * buffer.row;
    const Factors factors = buffer.factors[i];
    float taken = own;
    if constexpr (kDelta) taken = Fma(-held, factors.decayed, own);
    taken = Mul(taken, factors.weight);
    // Behind the last token, what the state holds under a key is not used.
    const float* const next_key = last ? key : key + buffer.row;
    const TokenSums sums = UpdateState<kOut, kDelta>(key, buffer.queries + i * buffer.row, next_key,
                                                     factors.keep, taken, state);
    held = sums.held;
    if constexpr (kOut) {
      float out = Mul(sums.out, factors.scale);
      if (args.skips) out = Fma(scan.skip, own, out);
      scan.out[t * args.out_token] = out;
    }
  }
}

template <int kTokens, class State>
KVCACHE_DEVICE void ScanSegment(const ScanArgs& args, const Scan& scan, State& state) {
  float value = scan.active ? scan.values[0] : 0.0f;
  float held = 0.0f;
  int count = scan.tokens < kTokens ? scan.tokens : kTokens;
  Rates rates = BeginTokens(args, scan, 0, count, BufferAt(0, kTokens, scan.k_dim));
  for (std::int32_t first = 0; first < scan.tokens; first += kTokens) {
    const int which = first / kTokens % 2;
    const TokenBuffer buffer = BufferAt(which, kTokens, scan.k_dim);
    AsyncWait<0>();
    WarpBarrier();  // all have this buffer's copies, and none reads the other buffer
    const Rates own = rates;
    const std::int32_t left = scan.tokens - first - count;
    const int next = left < kTokens ? left : kTokens;
    if (next > 0) {
      rates =
          BeginTokens(args, scan, first + kTokens, next, BufferAt(1 - which, kTokens, scan.k_dim));
    }
    SetFactors<kTokens>(args, scan, own, count, buffer);
    WarpBarrier();
    if (scan.active) {
      if (first == 0 && args.delta) held = HeldUnder(buffer.keys, state);
      const bool out = scan.out != nullptr;
      if (args.delta) {
        out ? ScanTokens<true, true>(args, scan, first, count, buffer, value, held, state)
            : ScanTokens<false, true>(args, scan, first, count, buffer, value, held, state);
      } else {
        out ? ScanTokens<true, false>(args, scan, first, count, buffer, value, held, state)
            : ScanTokens<false, false>(args, scan, first, count, buffer, value, held, state);
      }
    }
    count = next;
  }
  WarpBarrier();  // the next segment writes the buffers
}

// ---- A block

// The thread's column of a strand's head.
struct Column {
  std::int32_t strand;
  std::int32_t head;
  std::int32_t column;
};

KVCACHE_DEVICE Column ColumnOf(const ScanArgs& args) {
  const std::int32_t of_heads = BlockX() / args.blocks;
  const std::int32_t block = BlockX() - of_heads * args.blocks;
  const std::int32_t strand = of_heads / args.heads;
  return {strand, of_heads - strand * args.heads, block * kScanThreads + Lane()};
}

KVCACHE_DEVICE Scan ScanOf(const ScanArgs& args, const StateSegment& segment, const Column& at) {
  const std::int32_t group =
      args.rotating ? at.head % args.groups : at.head / (args.heads / args.groups);
  const std::int64_t first = segment.first;
  const bool out = args.out != nullptr;
  Scan scan;
  scan.keys = args.keys + group * args.key_group + first * args.key_token;
  scan.queries = out ? args.queries + group * args.query_group + first * args.query_token : nullptr;
  scan.values = args.values + at.head * args.value_head + first * args.value_token + at.column;
  scan.decays = args.decays + first * args.decay_token + at.head;
  scan.steps = args.steps + first * args.step_token + at.head;
  scan.out =
      out ? args.out + at.head * args.out_head + first * args.out_token + at.column : nullptr;
  scan.skip = 0.0f;
  if (args.skips) scan.skip = args.skip != nullptr ? args.skip[at.head] : args.few_skips[at.head];
  scan.k_dim = args.k_dim;
  scan.tokens = segment.tokens;
  scan.active = at.column < args.v_dim;
  return scan;
}

// Calls f(scan, before, after) for the strand's segments, in order.
template <class F>
KVCACHE_DEVICE void ForSegments(const ScanArgs& args, const F& f) {
  const Column at = ColumnOf(args);
  const Strand strand = StrandOf(args.list, at.strand);
  const std::int64_t state = std::int64_t{at.head} * args.k_dim * args.v_dim + at.column;
  for (std::int32_t i = strand.begin; i < strand.end; ++i) {
    const StateSegment segment = SegmentOf(args.list, i);
    f(ScanOf(args, segment, at), reinterpret_cast<const float*>(segment.before) + state,
      reinterpret_cast<float*>(segment.after) + state);
  }
}

template <int kKeys>
KVCACHE_DEVICE void ScanInRegisters(const ScanArgs& args) {
  ForSegments(args, [&](Scan scan, const float* before, float* after) {
    scan.k_dim = kKeys;
    RegisterState<kKeys> state;
    if (scan.active) CopyIn(before, args.v_dim, state);
    ScanSegment<kScanTokens<kKeys>>(args, scan, state);
    if (scan.active) CopyOut(state, after, args.v_dim);
  });
}

KVCACHE_DEVICE void ScanInShared(const ScanArgs& args) {
  constexpr int kTokens = kScanTokens<0>;
  float* const behind = &SharedMemory<float>() + 2 * ScanBufferFloats(args.k_dim, kTokens);
  ForSegments(args, [&](const Scan& scan, const float* before, float* after) {
    SharedState state{behind + Lane(), args.k_dim};
    if (scan.active) CopyIn(before, args.v_dim, state);
    ScanSegment<kTokens>(args, scan, state);
    if (scan.active) CopyOut(state, after, args.v_dim);
  });
}

KVCACHE_DEVICE void ScanInGlobal(const ScanArgs& args) {
  ForSegments(args, [&](const Scan& scan, const float* before, float* after) {
    GlobalState state{after, args.v_dim, args.k_dim};
    if (scan.active && after != before) CopyIn(before, args.v_dim, state);
    ScanSegment<kScanTokens<0>>(args, scan, state);
  });
}

}  // namespace

KVCACHE_KERNEL(scan_64, ScanArgs, kScanThreads) {
  ScanInRegisters<64>(args);
}

KVCACHE_KERNEL(scan_128, ScanArgs, kScanThreads) {
  ScanInRegisters<128>(args);
}

KVCACHE_KERNEL(scan_shared, ScanArgs, kScanThreads) {
  ScanInShared(args);
}

KVCACHE_KERNEL(scan_global, ScanArgs, kScanThreads) {
  ScanInGlobal(args);
}

}  // namespace kvcache::cuda
