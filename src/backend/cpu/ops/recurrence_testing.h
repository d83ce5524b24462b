// Helpers for tests of the recurrent kernels: views of vectors, segments, and inputs of scans.
//
// Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/ops/recurrence.h"
#include "backend/cpu/testing.h"

namespace kvcache::cpu::testing {

using Values = std::vector<float>;

inline TensorView View(Values& values, std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1,
                       std::int64_t d3 = 1) {
  EXPECT_GE(static_cast<std::int64_t>(values.size()), d0 * d1 * d2 * d3);
  return TensorView::Dense(values.data(), DType::kF32, d0, d1, d2, d3);
}

inline bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::size_t Size(std::int64_t size) {
  return static_cast<std::size_t>(size);
}

// Segments of a batch whose columns are in order.
struct Segments {
  // Adds a segment of the next `tokens` columns to the last strand.
  void Add(std::int32_t tokens, const float* before, float* after) {
    list.push_back({.first = next,
                    .tokens = tokens,
                    .before = reinterpret_cast<const std::byte*>(before),
                    .after = reinterpret_cast<std::byte*>(after)});
    next += tokens;
  }
  void EndStrand() { strands.push_back(static_cast<std::int32_t>(list.size())); }
  StateSegments View(std::int64_t values) const {
    return {.segments = list, .strands = strands, .values = values};
  }
  // As many tokens of each sequence, with states side by side.
  static Segments Even(const Values& before, Values& after, std::int64_t sequences,
                       std::int64_t tokens) {
    Segments segments;
    const std::size_t values = before.size() / static_cast<std::size_t>(sequences);
    for (std::size_t s = 0; s < static_cast<std::size_t>(sequences); ++s) {
      segments.Add(static_cast<std::int32_t>(tokens), &before[s * values], &after[s * values]);
      segments.EndStrand();
    }
    return segments;
  }

  std::vector<StateSegment> list;
  std::vector<std::int32_t> strands{0};
  std::int32_t next = 0;
};

struct ScanShape {
  std::int64_t k_dim, groups, v_dim, heads, sequences, tokens;
  ScanOptions options;
  std::int64_t batch() const { return sequences * tokens; }
};

inline constexpr float kSkip[] = {0.5f, -1.25f, 2.0f, 0.0f};
inline const ScanShape kScanShapes[] = {
    {16, 1, 16, 1, 1, 5, {.rule = ScanRule::kDelta}},
    {24, 2, 70, 4, 2, 3, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f, .query_scale = 0.2f}},
    {17, 1, 5, 2, 3, 1, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f}},
    {33, 2, 64, 4, 1, 9, {.rule = ScanRule::kAdd, .skip = kSkip}},
    {8, 4, 129, 4, 2, 2, {.rule = ScanRule::kAdd, .query_scale = 3.0f}},
    {128, 1, 128, 2, 1, 4, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f}},
    {12, 2, 33, 4, 2, 3, {.rule = ScanRule::kDelta, .groups = ScanGroups::kRotating}},
    {130, 1, 96, 1, 1, 4, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f}},
};

struct ScanData {
  explicit ScanData(const ScanShape& of)
      : shape(of),
        keys(RandomValues(of.k_dim * of.groups * of.batch(), 1)),
        queries(RandomValues(of.k_dim * of.groups * of.batch(), 2)),
        values(RandomValues(of.v_dim * of.heads * of.batch(), 3)),
        decays(RandomValues(of.heads * of.batch(), 4)),
        steps(RandomValues(of.heads * of.batch(), 5)),
        before(RandomValues(of.v_dim * of.k_dim * of.heads * of.sequences, 6)),
        after(before.size()),
        out(values.size()) {
    for (float& decay : decays) decay = std::exp(-std::abs(decay));
    for (float& step : steps) step = std::abs(step) / 2;
  }

  // Scans tokens [begin, end) of every sequence. REQUIRES: one sequence, or all tokens.
  Status Run(ThreadPool& pool, std::int64_t begin, std::int64_t end) {
    const std::int64_t batch = shape.sequences * (end - begin);
    const auto part = [&](Values& all, std::int64_t d0, std::int64_t d1) {
      return TensorView::Dense(all.data() + d0 * d1 * begin, DType::kF32, d0, d1, batch);
    };
    const auto rates = [&](Values& all) {
      return TensorView::Dense(all.data() + shape.heads * begin, DType::kF32, shape.heads, batch);
    };
    const Segments segments = Segments::Even(before, after, shape.sequences, end - begin);
    return StateScan(pool,
                     {.keys = part(keys, shape.k_dim, shape.groups),
                      .queries = part(queries, shape.k_dim, shape.groups),
                      .values = part(values, shape.v_dim, shape.heads),
                      .decays = rates(decays),
                      .steps = rates(steps)},
                     shape.options, segments.View(shape.v_dim * shape.k_dim * shape.heads),
                     part(out, shape.v_dim, shape.heads));
  }

  // Scans the whole batch in these segments. Without outputs it computes the states only.
  Status Scan(ThreadPool& pool, const Segments& segments) {
    const auto view = [&](Values& all, std::int64_t d0, std::int64_t d1) {
      return all.empty() ? TensorView() : View(all, d0, d1, shape.batch());
    };
    return StateScan(pool,
                     {.keys = view(keys, shape.k_dim, shape.groups),
                      .queries = view(queries, shape.k_dim, shape.groups),
                      .values = view(values, shape.v_dim, shape.heads),
                      .decays = View(decays, shape.heads, shape.batch()),
                      .steps = View(steps, shape.heads, shape.batch())},
                     shape.options, segments.View(shape.v_dim * shape.k_dim * shape.heads),
                     view(out, shape.v_dim, shape.heads));
  }

  ScanShape shape;
  Values keys, queries, values, decays, steps, before, after, out;
};

}  // namespace kvcache::cpu::testing
