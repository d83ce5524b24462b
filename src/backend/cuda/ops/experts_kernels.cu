#include "backend/cuda/ops/experts_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/vectors.h"
#include "base/arithmetic/activations.h"

namespace kvcache::cuda {
namespace {

// ---- The choice of the largest

// A warp's set of numbers from 0 on. Bit i % 32 of word i / 32 belongs to i.
struct Taken {
  std::uint32_t* words;

  KVCACHE_DEVICE bool Has(std::int32_t i) const {
    return (words[i / 32] >> static_cast<std::uint32_t>(i % 32) & 1u) != 0;
  }
  // Removes [0, count).
  KVCACHE_DEVICE void Clear(std::int32_t count) const {
    WarpBarrier();
    for (std::int32_t i = Lane(); i < TakenWords(count); i += 32) words[i] = 0;
    WarpBarrier();
  }
  KVCACHE_DEVICE void Add(std::int32_t i) const {
    WarpBarrier();
    if (Lane() == 0) words[i / 32] |= 1u << static_cast<std::uint32_t>(i % 32);
    WarpBarrier();
  }
};

// Returns the number in [begin, end) with the largest score among those not taken, the first of equal
// ones. A NaN is never larger than another score, and the first number stays if its score is NaN: as
// in a search from `begin` on. REQUIRES: not all are taken. All threads of the warp get the result.
KVCACHE_DEVICE std::int32_t Best(const float* scores, std::int32_t begin, std::int32_t end,
                                 const Taken& taken) {
  std::int32_t first = end;
  std::int32_t best = end;
  float score = 0.0f;
  for (std::int32_t i = begin + Lane(); i < end; i += 32) {
    if (taken.Has(i)) continue;
    if (first == end) first = i;
    const float own = scores[i];
    if (own != own) continue;  // NaN
    if (best != end && !(own > score)) continue;
    best = i;
    score = own;
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    const std::int32_t other_first = ShuffleXor(first, apart);
    const std::int32_t other = ShuffleXor(best, apart);
    const float other_score = ShuffleXor(score, apart);
    if (other_first < first) first = other_first;
    const bool better =
        best == end || other_score > score || (other_score == score && other < best);
    if (other != end && better) {
      best = other;
      score = other_score;
    }
  }
  const float of_first = scores[first];
  return of_first != of_first ? first : best;
}

// ---- The gate

// The values e_i of docs/design/exactness.md.
struct Values {
  const float* logits;
  float largest;
  bool sigmoid;

  KVCACHE_DEVICE float operator()(std::int32_t i) const {
    return sigmoid ? arithmetic::Sigmoid(logits[i]) : arithmetic::Exp(Sub(logits[i], largest));
  }
};

// Sums value(0) … value(count - 1) in 16 virtual lanes; each thread computes each 32nd value.
template <class Value>
KVCACHE_DEVICE float SumInLanes(std::int32_t count, const Value& value) {
  float lane = 0.0f;
  for (std::int32_t i = 0; i < count; i += 32) {
    const float own = i + Lane() < count ? value(i + Lane()) : 0.0f;
    const float behind = Shuffle(own, (Lane() + 16) % 32);
    if (Lane() < 16) {
      if (i + Lane() < count) lane = Add(lane, own);
      if (i + 16 + Lane() < count) lane = Add(lane, behind);
    }
  }
  for (int apart = 8; apart > 0; apart /= 2) lane = Add(lane, ShuffleXor(lane, apart));
  return Shuffle(lane, 0);
}

// ---- Scores

// A token's shared memory.
struct Scores {
  float* of_expert;
  float* of_group;
  Taken experts;
  Taken groups;
};

KVCACHE_DEVICE Scores ScoresOf(const RouteArgs& args) {
  float* at = &SharedMemory<float>();
  Scores scores;
  scores.experts.words = reinterpret_cast<std::uint32_t*>(at);
  at += TakenWords(args.count);
  scores.groups.words = reinterpret_cast<std::uint32_t*>(at);
  at += TakenWords(args.groups);
  scores.of_expert = at;
  scores.of_group = at + args.count;
  return scores;
}

// Excludes the experts of all groups but the best.
KVCACHE_DEVICE void ExcludeGroups(const RouteArgs& args, const Scores& scores) {
  const std::int32_t size = args.count / args.groups;
  for (std::int32_t group = 0; group < args.groups; ++group) {
    float sum = 0.0f;
    for (std::int32_t i = 0; i < args.group_best; ++i) {
      const std::int32_t best =
          Best(scores.of_expert, group * size, (group + 1) * size, scores.experts);
      sum = Add(sum, scores.of_expert[best]);
      scores.experts.Add(best);
    }
    if (Lane() == 0) scores.of_group[group] = sum;
  }
  scores.experts.Clear(args.count);
  scores.groups.Clear(args.groups);
  for (std::int32_t i = 0; i < args.groups_used; ++i) {
    scores.groups.Add(Best(scores.of_group, 0, args.groups, scores.groups));
  }
  for (std::int32_t i = Lane(); i < args.count; i += 32) {
    if (!scores.groups.Has(i / size)) scores.of_expert[i] = FloatOf(0xff800000u);  // -infinity
  }
  WarpBarrier();
}

KVCACHE_DEVICE void SetScores(const RouteArgs& args, const Values& values, const Scores& scores) {
  const float sum = args.sigmoid ? 1.0f : SumInLanes(args.count, values);
  for (std::int32_t i = Lane(); i < args.count; i += 32) {
    float score = Div(values(i), sum);
    if (args.selection_bias != nullptr) score = Add(score, args.selection_bias[i]);
    scores.of_expert[i] = score;
  }
  WarpBarrier();
  if (args.groups > 1) ExcludeGroups(args, scores);
}

}  // namespace

KVCACHE_KERNEL(route, RouteArgs, kRouteThreads) {
  const std::int64_t token = BlockX();
  const float* const logits = args.logits + token * args.stride;
  std::int32_t* const experts = args.experts + token * args.chosen;
  const Scores scores = ScoresOf(args);
  scores.experts.Clear(args.count);
  Values values{logits, 0.0f, args.sigmoid};
  if (!args.sigmoid) values.largest = logits[Best(logits, 0, args.count, scores.experts)];
  const float* by = logits;
  if (IsScored(args)) {
    SetScores(args, values, scores);
    by = scores.of_expert;
  }
  for (std::int32_t i = 0; i < args.chosen; ++i) {
    const std::int32_t best = Best(by, 0, args.count, scores.experts);
    if (Lane() == 0) experts[i] = best;
    scores.experts.Add(best);
  }
  float sum = 1.0f;
  if (args.normalized) {
    // Keeps a sum of sigmoids above zero.
    sum = arithmetic::Max(
        1e-20f, SumInLanes(args.chosen, [&](std::int32_t i) { return values(experts[i]); }));
  } else if (!args.sigmoid) {
    sum = SumInLanes(args.count, values);
  }
  for (std::int32_t i = Lane(); i < args.chosen; i += 32) {
    float weight = Mul(Div(values(experts[i]), sum), args.scale);
    if (args.factors != nullptr) weight = Mul(weight, args.factors[experts[i]]);
    args.weights[token * args.chosen + i] = weight;
  }
}

namespace {

// Sets `sum` to the weighted sum of a token's parts, kValues neighbors from k on.
template <int kValues>
KVCACHE_DEVICE void CombineValues(const CombineArgs& args, std::int64_t token, std::int64_t k) {
  struct alignas(4 * kValues) Neighbors {
    float v[kValues];
  };
  Neighbors sum = {};
  for (std::int32_t i = 0; i < args.parts; ++i) {
    const std::int64_t part = token * args.parts + i;
    const float weight = args.weights != nullptr ? args.weights[part] : 1.0f;
    const Neighbors y =
        *reinterpret_cast<const Neighbors*>(args.y + args.columns[part] * args.y_stride + k);
    for (int j = 0; j < kValues; ++j) {
      sum.v[j] = i == 0 ? Mul(weight, y.v[j]) : Fma(weight, y.v[j], sum.v[j]);
    }
  }
  *reinterpret_cast<Neighbors*>(args.out + token * args.out_stride + k) = sum;
}

}  // namespace

KVCACHE_KERNEL(combine, CombineArgs, kCombineThreads) {
  const std::int32_t token = BlockX() / args.blocks;
  std::int64_t k = (BlockX() - token * args.blocks) * kCombineBlock + Thread() * 4;
  if (args.vectors && k + 4 <= args.width) return CombineValues<4>(args, token, k);
  const std::int64_t end = k + 4 < args.width ? k + 4 : args.width;
  for (; k < end; ++k) CombineValues<1>(args, token, k);
}

}  // namespace kvcache::cuda
