// Checks segments of the recurrent kernels: uneven batches, strands, and trees of drafts have the
// bits of each path alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cpu/ops/recurrence.h"
#include "backend/cpu/ops/recurrence_testing.h"
#include "backend/cpu/testing.h"

namespace kvcache::cpu::recurrence_segments_test {
namespace {

using testing::ForcedTarget;
using testing::kScanShapes;
using testing::RandomValues;
using testing::SameBits;
using testing::ScanData;
using testing::ScanShape;
using testing::Segments;
using testing::Size;
using testing::Values;
using testing::View;

class RecurrenceSegmentsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(forced_.ok()); }
  ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, RecurrenceSegmentsTest, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

// A batch of uneven sequences and of trees, with segments of any length:
//
//   columns   0 1 2 3 4 | 5 | 6 ─ 7 ─ 8       the third sequence has two alternatives after 6 and
//                               └ 9 ─ 10      another root, 11
//                           11
//
// Paths give the columns of each path, and segments their division.
struct Paths {
  std::vector<std::vector<std::int64_t>> columns = {
      {0, 1, 2, 3, 4}, {5}, {6, 7, 8}, {6, 9, 10}, {11}};
  std::vector<std::size_t> sequence = {0, 1, 2, 2, 2};  // whose state the path continues
  static constexpr std::int64_t kBatch = 12;

  // Divides the columns. The state after path i is at(i); `scratch` holds the one after column 6.
  template <class Before, class At>
  static Segments Divide(const Before& before, const At& at, float* scratch) {
    Segments segments;
    segments.Add(2, before(0), at(0));  // a strand of two segments, the second in place
    segments.Add(3, at(0), at(0));
    segments.EndStrand();
    segments.Add(1, before(1), at(1));
    segments.EndStrand();
    segments.Add(1, before(2), scratch);
    segments.Add(2, scratch, at(2));
    segments.Add(2, scratch, at(3));
    segments.EndStrand();
    segments.Add(1, before(2), at(4));
    segments.EndStrand();
    return segments;
  }
};

// Copies the given columns of [rows, batch].
Values ColumnsOf(const Values& from, std::int64_t rows, const std::vector<std::int64_t>& columns) {
  Values to;
  for (const std::int64_t column : columns) {
    to.insert(to.end(), from.begin() + column * rows, from.begin() + (column + 1) * rows);
  }
  return to;
}

Values Part(const Values& from, std::size_t index, std::int64_t size) {
  const auto begin = from.begin() + static_cast<std::ptrdiff_t>(index) * size;
  return {begin, begin + size};
}

TEST_P(RecurrenceSegmentsTest, ConvolutionOfSegmentsHasTheBitsOfEachPathAlone) {
  constexpr std::int64_t kChannels = 70, kSteps = 4, kValues = (kSteps - 1) * kChannels;
  const Paths paths;
  Values x = RandomValues(kChannels * Paths::kBatch, 1);
  Values taps = RandomValues(kSteps * kChannels, 2);
  Values before = RandomValues(kValues * 3, 3);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Values y(x.size()), after(kValues * 5), scratch(kValues);
    const Segments segments =
        Paths::Divide([&](std::int64_t i) { return &before[Size(i * kValues)]; },
                      [&](std::int64_t i) { return &after[Size(i * kValues)]; }, scratch.data());
    const TensorView in = View(x, kChannels, Paths::kBatch);
    const ConvTaps conv{View(taps, kSteps, kChannels)};
    ASSERT_TRUE(
        ShortConv(pool, in, conv, segments.View(kValues), View(y, kChannels, Paths::kBatch)).ok());
    for (std::size_t path = 0; path < paths.columns.size(); ++path) {
      Values own = ColumnsOf(x, kChannels, paths.columns[path]);
      Values state = Part(before, paths.sequence[path], kValues);
      Values alone(own.size()), last(state.size());
      const auto tokens = static_cast<std::int64_t>(paths.columns[path].size());
      ASSERT_TRUE(ShortConv(pool, View(own, kChannels, tokens), conv,
                            Segments::Even(state, last, 1, tokens).View(kValues),
                            View(alone, kChannels, tokens))
                      .ok());
      EXPECT_TRUE(SameBits(ColumnsOf(y, kChannels, paths.columns[path]), alone)) << path;
      EXPECT_TRUE(SameBits(Part(after, path, kValues), last)) << path;
    }
    // Without y, the states are the same.
    Values again(after.size());
    const Segments states =
        Paths::Divide([&](std::int64_t i) { return &before[Size(i * kValues)]; },
                      [&](std::int64_t i) { return &again[Size(i * kValues)]; }, scratch.data());
    const ConvTaps sizes{TensorView::Dense(nullptr, DType::kF32, kSteps, kChannels)};
    ASSERT_TRUE(ShortConv(pool, in, sizes, states.View(kValues), {}).ok());
    EXPECT_TRUE(SameBits(again, after));
  }
}

TEST_P(RecurrenceSegmentsTest, ScanOfSegmentsHasTheBitsOfEachPathAlone) {
  const Paths paths;
  for (ScanShape shape : kScanShapes) {
    shape.sequences = 1;
    shape.tokens = Paths::kBatch;
    const ScanData batch(shape);
    const std::int64_t values = shape.v_dim * shape.k_dim * shape.heads;
    Values before = RandomValues(values * 3, 7);
    Values after(Size(values * 5)), again(after.size()), scratch(Size(values));
    ThreadPool pool(2);
    const auto divide = [&](Values& to) {
      return Paths::Divide([&](std::int64_t i) { return &before[Size(i * values)]; },
                           [&](std::int64_t i) { return &to[Size(i * values)]; }, scratch.data());
    };
    ScanData all = batch;
    ASSERT_TRUE(all.Scan(pool, divide(after)).ok());
    for (std::size_t path = 0; path < paths.columns.size(); ++path) {
      const std::vector<std::int64_t>& columns = paths.columns[path];
      shape.tokens = static_cast<std::int64_t>(columns.size());
      ScanData alone(shape);
      alone.keys = ColumnsOf(batch.keys, shape.k_dim * shape.groups, columns);
      alone.queries = ColumnsOf(batch.queries, shape.k_dim * shape.groups, columns);
      alone.values = ColumnsOf(batch.values, shape.v_dim * shape.heads, columns);
      alone.decays = ColumnsOf(batch.decays, shape.heads, columns);
      alone.steps = ColumnsOf(batch.steps, shape.heads, columns);
      alone.before = Part(before, paths.sequence[path], values);
      ASSERT_TRUE(alone.Run(pool, 0, shape.tokens).ok());
      EXPECT_TRUE(SameBits(ColumnsOf(all.out, shape.v_dim * shape.heads, columns), alone.out))
          << path;
      EXPECT_TRUE(SameBits(Part(after, path, values), alone.after)) << path;
    }
    ScanData states = batch;
    states.out.clear();  // without outputs, the states are the same
    states.queries.clear();
    ASSERT_TRUE(states.Scan(pool, divide(again)).ok());
    EXPECT_TRUE(SameBits(again, after));
  }
}

}  // namespace
}  // namespace kvcache::cpu::recurrence_segments_test
