// Attention's documented chain of operations (docs/design/exactness.md), written out one value at
// a time. Tests compare the kernels' results with it, as bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks_testing.h"

namespace kvcache::cpu {

// Multiply-add as on the target under test: fused, or rounded twice.
struct Arithmetic {
  bool fused = true;
  float MulAdd(float a, float b, float c) const { return fused ? std::fma(a, b, c) : a * b + c; }

  float Exp(float x) const {
    if (x < -87.0f) return 0.0f;
    const float shifted = MulAdd(x, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    const float r = MulAdd(n, -1.42860677e-6f, MulAdd(n, -0.693145751953125f, x));
    float p = 0x1.6a2434p-10f;
    for (const float c :
         {0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f}) {
      p = MulAdd(p, r, c);
    }
    return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  }

  float Tanh(float x) const {
    if (std::fabs(x) < 0.625f) {
      const float square = x * x;
      float q = -0.005704225f;
      for (const float c : {0.020638432f, -0.05373952f, 0.1333144f, -0.3333328f}) {
        q = MulAdd(q, square, c);
      }
      return MulAdd(x * square, q, x);
    }
    const float e = Exp(std::fabs(x) * -2.0f);
    return std::copysign((1.0f - e) / (1.0f + e), x);
  }
};

// A query as keys of block types are scored with it: scaled, transformed, quantised per 32 values.
struct QuantizedQuery {
  std::vector<std::int32_t> codes;  // [k_dim]
  std::vector<float> scales;        // [k_dim / 32]
};

inline void TurnChain(std::span<float> x, std::int64_t size) {
  const auto dim = static_cast<std::int64_t>(x.size());
  for (std::int64_t half = 1; half < size; half *= 2) {
    for (std::int64_t i = 0; i < dim; ++i) {
      if ((i & half) != 0) continue;
      float& a = x[static_cast<std::size_t>(i)];
      float& b = x[static_cast<std::size_t>(i + half)];
      const float sum = a + b;
      b = a - b;
      a = sum;
    }
  }
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (float& value : x) value *= factor;
}

inline QuantizedQuery QuantizeChain(const Scene& scene, float scale, const QueryAt& query,
                                    int head) {
  std::vector<float> x;
  for (int d = 0; d < scene.options().shape.k_dim; ++d) {
    x.push_back(scene.Query(query, head, d) * scale);
  }
  const std::span<float> all(x);
  const auto latent = static_cast<std::size_t>(LatentBlocks(scene.layer()) * kKvBlock);
  if (latent > 0) {
    TurnChain(all.first(latent), LatentHadamardSize(static_cast<std::int64_t>(latent)));
  }
  const std::span<float> rest = all.subspan(latent);
  if (!rest.empty()) TurnChain(rest, HadamardSize(static_cast<std::int64_t>(rest.size())));
  QuantizedQuery q;
  for (std::size_t from = 0; from < x.size(); from += kKvBlock) {
    const std::size_t first = from < latent ? 0 : from;
    const std::size_t last = from < latent ? latent : from + kKvBlock;
    float max = 0.0f;
    for (std::size_t i = first; i < last; ++i) max = std::max(max, std::fabs(x[i]));
    const float unit = max / 127.0f;
    const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    q.scales.push_back(unit);
    for (std::size_t i = from; i < from + kKvBlock; ++i) {
      q.codes.push_back(static_cast<std::int32_t>(std::nearbyint(x[i] * inverse)));
    }
  }
  return q;
}

// Scores before soft-cap and bias.
class ScoreChain {
 public:
  ScoreChain(const Arithmetic& math, const Scene& scene, float scale, const QueryAt& query,
             int head)
      : math_(math), scene_(scene), scale_(scale), query_(query), head_(head) {
    if (IsKvBlockType(scene.options().k_type)) q_ = QuantizeChain(scene, scale, query, head);
  }

  float Of(Position p) const {
    const SceneOptions& o = scene_.options();
    const int kv_head = head_ / (o.heads / o.shape.kv_heads);
    if (IsKvBlockType(o.k_type)) return OfBlocks(p, kv_head);
    float s = 0.0f;
    for (int d = 0; d < o.shape.k_dim; ++d) {
      s = math_.MulAdd(scene_.Query(query_, head_, d) * scale_,
                       scene_.Key(query_.sequence, p, kv_head, d), s);
    }
    return s;
  }

 private:
  float OfBlocks(Position p, int kv_head) const {
    const std::int64_t cell = scene_.CellOf(query_.sequence, p);
    float s = 0.0f;
    std::int64_t of_latent = 0;
    const auto latent = static_cast<int>(LatentBlocks(scene_.layer()));
    for (int b = 0; b < static_cast<int>(q_.scales.size()); ++b) {
      std::int32_t dot = 0;
      float scale = 0.0f;
      for (int d = b * static_cast<int>(kKvBlock); d < (b + 1) * kKvBlock; ++d) {
        const StoredInBlock key = StoredKey(scene_.layer(), kv_head, cell, d);
        dot += key.code * q_.codes[static_cast<std::size_t>(d)];
        scale = key.scale;
      }
      if (b < latent) {
        of_latent += dot;
        s = static_cast<float>(of_latent) * scale * q_.scales.front();
        continue;
      }
      const float scaled = static_cast<float>(dot) * scale;
      s = math_.MulAdd(scaled, q_.scales[static_cast<std::size_t>(b)], s);
    }
    return s;
  }

  const Arithmetic& math_;
  const Scene& scene_;
  float scale_;
  QueryAt query_;
  int head_;
  QuantizedQuery q_;
};

struct SplitResult {
  float m = 0.0f;
  float l = 0.0f;
  std::vector<float> a = {};
};

// The weights of one split for a block of values: weights times scales as integers times one unit.
// REQUIRES: finite scales.
inline StoredInBlock StoredTerm(const LayerKv& layer, int kv_head, std::int64_t cell, int d) {
  return HoldsLatents(layer) ? StoredKey(layer, kv_head, cell, d)
                             : StoredValue(layer, kv_head, cell, d);
}
inline void BlockSums(const Arithmetic& math, const Scene& scene, const QueryAt& query, int kv_head,
                      const std::vector<Position>& seen, const std::vector<float>& weights,
                      int block, std::vector<float>& sums) {
  const int first = block * static_cast<int>(kKvBlock);
  std::vector<float> scaled;
  float max = 0.0f;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::int64_t cell = scene.CellOf(query.sequence, seen[i]);
    const int with_scale = HoldsLatents(scene.layer()) ? 0 : first;
    const float scale = StoredTerm(scene.layer(), kv_head, cell, with_scale).scale;
    scaled.push_back(weights[i] == 0.0f ? 0.0f : weights[i] * scale);
    max = std::max(max, std::fabs(scaled.back()));
  }
  const float unit = max / 32512.0f;
  const float inverse = unit < std::numeric_limits<float>::min() ? 0.0f : 1.0f / unit;
  constexpr float kIntegers = 12582912.0f;  // where floats are integers
  std::vector<std::int64_t> totals(kKvBlock);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const float rounded = math.MulAdd(scaled[i], inverse, kIntegers) - kIntegers;
    const std::int64_t cell = scene.CellOf(query.sequence, seen[i]);
    for (int d = 0; d < kKvBlock; ++d) {
      totals[static_cast<std::size_t>(d)] +=
          static_cast<std::int64_t>(rounded) *
          StoredTerm(scene.layer(), kv_head, cell, first + d).code;
    }
  }
  for (std::size_t d = 0; d < totals.size(); ++d) {
    sums[static_cast<std::size_t>(first) + d] = static_cast<float>(totals[d]) * unit;
  }
}

inline SplitResult SplitChain(const Arithmetic& math, const Scene& scene, const Rules& rules,
                              const QueryAt& query, int head, const std::vector<Position>& seen) {
  const SceneOptions& o = scene.options();
  const int kv_head = head / (o.heads / o.shape.kv_heads);
  const ScoreChain chain(math, scene, rules.scale, query, head);
  std::vector<float> scores;
  for (const Position p : seen) {
    float s = chain.Of(p);
    if (rules.soft_cap > 0.0f) s = rules.soft_cap * math.Tanh(s / rules.soft_cap);
    if (!rules.bias.empty()) {
      const int distance = std::clamp(p - query.position, -rules.past, rules.future);
      const int first = head * (rules.past + 1 + rules.future);
      s += rules.bias[static_cast<std::size_t>(first + rules.past + distance)];
    }
    scores.push_back(s);
  }
  SplitResult result{.m = *std::max_element(scores.begin(), scores.end()),
                     .a = std::vector<float>(static_cast<std::size_t>(o.shape.v_dim))};
  float lanes[16] = {};
  std::vector<float> weights;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    weights.push_back(math.Exp(scores[i] - result.m));
    lanes[seen[i] % 16] += weights.back();
  }
  const bool blocks = IsKvBlockType(scene.layer().v_type);
  for (int b = 0; blocks && b < o.shape.v_dim / kKvBlock; ++b) {
    BlockSums(math, scene, query, kv_head, seen, weights, b, result.a);
  }
  for (int d = 0; !blocks && d < o.shape.v_dim; ++d) {
    float& a = result.a[static_cast<std::size_t>(d)];
    for (std::size_t i = 0; i < seen.size(); ++i) {
      a = math.MulAdd(weights[i], scene.Value(query.sequence, seen[i], kv_head, d), a);
    }
  }
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  result.l = lanes[0];
  return result;
}

// Computes one query and head by the chain of docs/design/exactness.md.
inline std::vector<float> ChainRow(const Arithmetic& math, const Scene& scene, const Rules& rules,
                                   const QueryAt& query, int head) {
  SplitResult total;
  bool any = false;
  for (Position base = 0; base < scene.End(query.sequence); base += 256) {
    std::vector<Position> seen;
    for (Position p = base; p < base + 256; ++p) {
      if (Sees(scene, rules, query, p)) seen.push_back(p);
    }
    if (seen.empty()) continue;
    SplitResult split = SplitChain(math, scene, rules, query, head, seen);
    if (!any) {
      total = std::move(split);
      any = true;
      continue;
    }
    const float m = std::max(total.m, split.m);
    const float keep = math.Exp(total.m - m);
    const float add = math.Exp(split.m - m);
    total.m = m;
    total.l = math.MulAdd(total.l, keep, split.l * add);
    for (std::size_t d = 0; d < total.a.size(); ++d) {
      total.a[d] = math.MulAdd(total.a[d], keep, split.a[d] * add);
    }
  }
  if (!any) return std::vector<float>(static_cast<std::size_t>(scene.options().shape.v_dim), 0.0f);
  float keep = 1.0f;
  if (!rules.sinks.empty()) {
    const float sink = rules.sinks[static_cast<std::size_t>(head)];
    const float m = std::max(total.m, sink);
    keep = math.Exp(total.m - m);
    total.l = math.MulAdd(total.l, keep, math.Exp(sink - m));
  }
  for (float& a : total.a) a = a * keep / total.l;
  if (HoldsLatents(scene.layer()))
    TurnChain(total.a, LatentHadamardSize(scene.options().shape.v_dim));
  return total.a;
}

inline std::vector<float> ChainOf(const Scene& scene, const std::vector<QueryAt>& batch,
                                  const Rules& rules, const Arithmetic& math = {}) {
  std::vector<float> out;
  for (const QueryAt& query : batch) {
    for (int head = 0; head < scene.options().heads; ++head) {
      const std::vector<float> row = ChainRow(math, scene, rules, query, head);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

}  // namespace kvcache::cpu
