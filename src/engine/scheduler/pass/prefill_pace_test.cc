// The promises of PrefillPace and PrefillBudget on machines whose times are functions.
#include "engine/scheduler/pass/prefill_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler/pass/prefill_budget.h"

namespace kvcache::prefill_pace_test {
namespace {

constexpr double kStep = 0.1;
constexpr Position kMax = 512;

// A pass reads the weights while it computes its tokens; pairs of tokens come on top.
struct Machine {
  const char* name;
  double weights = 0.0;
  double token = 0.0;
  double pair = 0.0;
  double noise = 0.0;  // deviation of the logarithm

  double Seconds(int rows, Position depth, Position count) const {
    const double pairs = static_cast<double>(count) * (depth + count / 2.0);
    return 0.1 * weights + std::max(weights, token * (rows + count)) + pair * pairs;
  }
};

constexpr Machine kMachines[] = {
    {"a small model, mostly attention", 0.003, 0.00008, 1.6e-7},
    {"a large one on few cores", 0.08, 0.007, 5e-7},
    {"a large one on some cores", 0.08, 0.0025, 5e-7},
    {"a large one on many cores", 0.03, 0.0005, 1e-7},
    {"one for which no chunk is short enough", 0.4, 0.05, 1e-6},
    {"one that is never late", 0.003, 0.00001, 1e-9},
    {"without attention", 0.01, 0.001, 0.0},
};

// Reads prompts beside `rows` and measures what they add.
class Reader {
 public:
  Reader(const Machine& machine, int rows, int alone = 20)
      : machine_(machine), rows_(rows), random_(static_cast<unsigned>(rows)) {
    for (int i = 0; i < alone; ++i) Alone();
  }
  void Alone(double slower = 1.0) { pace.Count(rows_, {}, slower * Time(0, 0)); }
  // Reads the next chunk of a prompt of which `depth` were read, and returns its tokens.
  Position Read(Position depth, Position left) {
    if (pace.MeasuresRows(rows_)) {
      Alone();
      EXPECT_FALSE(pace.MeasuresRows(rows_)) << "two passes without a prompt";
    }
    const PrefillBudget budget(pace, kMax, rows_);
    const Position count = budget.Offer(depth, left);
    PrefillWork work;
    work.Add(depth, count);
    const double seconds = Time(depth, count);
    added.push_back(seconds - busy * machine_.Seconds(rows_, 0, 0));
    pace.Count(rows_, work, seconds);
    return count;
  }
  void ReadAll(Position depth, Position left) {
    while (left > 0) {
      const Position count = Read(depth, left);
      EXPECT_GE(count, std::min<Position>(left, 16));
      depth += count;
      left -= count;
    }
  }
  // What adds no more than it must.
  double Bound(Position depth) const {
    const double min = machine_.Seconds(rows_, depth, 16) - machine_.Seconds(rows_, 0, 0);
    return std::max(kStep, busy * min);
  }

  PrefillPace pace{kStep, kMax};
  std::vector<double> added;
  double busy = 1.0;

 private:
  double Time(Position depth, Position count) {
    const double noise = std::exp(machine_.noise * normal_(random_));
    return busy * noise * machine_.Seconds(rows_, depth, count);
  }

  const Machine machine_;
  const int rows_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

double Percentile(std::vector<double> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

TEST(PrefillWork, CountsTokensByTheOctaveOfTheirDepth) {
  PrefillWork work;
  work.Add(250, 300);
  work.Add(5000, 7);
  EXPECT_EQ(work.tokens(), 307);
  EXPECT_EQ(work.tokens(0), 6);
  EXPECT_EQ(work.tokens(1), 256);
  EXPECT_EQ(work.tokens(2), 38);
  EXPECT_EQ(work.tokens(5), 7);
  EXPECT_EQ(PrefillWork::OctaveOf(0), 0U);
  EXPECT_EQ(PrefillWork::OctaveOf(255), 0U);
  EXPECT_EQ(PrefillWork::OctaveOf(256), 1U);
  EXPECT_EQ(PrefillWork::OctaveOf(1 << 30), PrefillWork::kOctaves - 1);
  PrefillWork deep;
  deep.Add(1 << 30, 512);
  EXPECT_EQ(deep.tokens(PrefillWork::kOctaves - 1), 512);
}

TEST(PrefillPace, AChunkAddsAtMostTheStepsTime) {
  for (const Machine& machine : kMachines) {
    for (const int rows : {1, 15, 64}) {
      SCOPED_TRACE(std::string(machine.name) + ", " + std::to_string(rows) + " rows");
      Reader reader(machine, rows);
      for (Position depth = 0; depth < 30000;) {
        depth += reader.Read(depth, 30000 - depth);
        EXPECT_LE(reader.added.back(), 1.3 * reader.Bound(depth)) << "at " << depth;
      }
      const double work = machine.Seconds(0, 0, 30000) - machine.weights;
      EXPECT_LE(static_cast<double>(reader.added.size()),
                30 + std::max(1.6 * work / kStep, 30000.0 / 16))
          << "chunks are not smaller than they need be";
      // Short prompts and deep ones, of which much was restored.
      for (const Position at : {0, 20000, 100, 3000, 28000}) {
        reader.added.clear();
        reader.ReadAll(at, 2000);
        const double longest = *std::max_element(reader.added.begin(), reader.added.end());
        EXPECT_LE(longest, 1.4 * reader.Bound(at + 2000)) << "behind " << at;
      }
    }
  }
}

TEST(PrefillPace, ItConvergesWithinAFewChunks) {
  Reader reader({"", 0.003, 0.0005, 0.0}, 15);
  for (int chunk = 0; chunk < 8; ++chunk) reader.Read(0, 1000);
  EXPECT_GT(reader.Read(0, 1000), 120);
  EXPECT_LE(reader.Read(0, 1000), 200);
}

TEST(PrefillPace, AtDepthsThatWereNotMeasuredChunksAreShort) {
  Reader reader(kMachines[0], 15);
  reader.ReadAll(0, 1500);
  reader.added.clear();
  reader.ReadAll(28000, 1000);
  EXPECT_LE(*std::max_element(reader.added.begin(), reader.added.end()), 1.1 * kStep);
}

TEST(PrefillPace, ASinglePassChangesLittle) {
  Reader reader(kMachines[3], 4);
  Position depth = 0;
  while (depth < 5000) depth += reader.Read(depth, 100000);
  const Position before = reader.Read(depth, 100000);
  reader.busy = 50.0;
  reader.Read(depth, 100000);
  reader.busy = 1.0;
  for (int i = 0; i < 12; ++i) reader.Read(depth, 100000);
  EXPECT_GE(reader.Read(depth, 100000), before * 3 / 4);
}

TEST(PrefillPace, ASlowFirstPassIsForgotten) {
  PrefillPace pace(kStep, kMax);
  pace.Count(4, {}, 3.0);
  for (int i = 0; i < 8; ++i) pace.Count(4, {}, 0.03);
  EXPECT_LT(pace.RowSeconds(4), 0.05);
}

// The time of rows is measured in few passes. One that was slow would make chunks look cheap.
TEST(PrefillPace, ASlowPassOfRowsMisleadsFewChunks) {
  for (const Machine& machine : kMachines) {
    for (const double slower : {3.0, 10.0, 30.0}) {
      for (const bool first : {true, false}) {
        Reader reader(machine, 15, first ? 0 : 20);
        reader.Alone(slower);
        Position depth = 0;
        int late = 0;
        for (int chunk = 0; chunk < 200; ++chunk) {
          const double bound = 1.3 * reader.Bound(depth);
          depth += reader.Read(depth, 1'000'000);
          late += reader.added.back() > bound ? 1 : 0;
        }
        EXPECT_LE(late, 3) << machine.name << ", " << slower << (first ? " times, the first" : "");
      }
    }
  }
}

// A coarse clock may show that a pass took no time.
TEST(PrefillPace, PassesWithoutTimeDoNoHarm) {
  const Machine& machine = kMachines[2];
  Reader reader(machine, 15, 0);
  for (int i = 0; i < 3; ++i) reader.Alone(0.0);
  EXPECT_TRUE(std::isfinite(reader.pace.RowSeconds(15)));
  reader.ReadAll(0, 3'000);
  EXPECT_GT(reader.Read(2'000, 1'000), 16);
  EXPECT_LE(reader.added.back(), 1.3 * reader.Bound(2'000));
}

TEST(PrefillPace, ItFollowsAMachineThatBecomesBusy) {
  for (const double busy : {2.0, 4.0, 8.0}) {
    Reader reader({"", 0.003, 0.0002, 1e-8}, 15);
    Position depth = 0;
    while (depth < 5000) depth += reader.Read(depth, 100000);
    reader.busy = busy;
    for (int i = 0; i < 4; ++i) depth += reader.Read(depth, 100000);
    reader.added.clear();
    for (int i = 0; i < 100; ++i) depth += reader.Read(depth, 100000);
    EXPECT_LE(*std::max_element(reader.added.begin(), reader.added.end()), 1.3 * kStep) << busy;
    EXPECT_GE(Percentile(reader.added, 0.5), 0.6 * kStep) << busy;
  }
}

TEST(PrefillPace, NoiseMakesChunksShorter) {
  for (const double noise : {0.05, 0.1, 0.15}) {
    Reader reader({"", 0.003, 0.0002, 1e-8, noise}, 15);
    Position depth = 0;
    for (int i = 0; i < 30; ++i) depth += reader.Read(depth, 1000000);
    reader.added.clear();
    for (int i = 0; i < 2000; ++i) reader.Read(depth, 1000000);
    EXPECT_LE(Percentile(reader.added, 0.99), 1.3 * kStep) << noise;
    EXPECT_GE(Percentile(reader.added, 0.5), 0.5 * kStep) << noise;
  }
}

// What decodes take changes while prompts are read all the time.
TEST(PrefillPace, RowsAreMeasuredAgain) {
  PrefillPace pace(kStep, kMax);
  EXPECT_FALSE(pace.MeasuresRows(0)) << "nothing to measure";
  EXPECT_TRUE(pace.MeasuresRows(3)) << "never measured";
  pace.Count(3, {}, 0.05);
  EXPECT_FALSE(pace.MeasuresRows(3));
  PrefillWork chunk;
  chunk.Add(0, 16);
  int passes = 0;
  for (; !pace.MeasuresRows(3); ++passes) pace.Count(3, chunk, 0.1);
  EXPECT_EQ(passes, 2) << "one measurement may be a bad one";
  pace.Count(3, {}, 0.05);
  passes = 0;
  while (!pace.MeasuresRows(3)) {
    pace.Count(3, chunk, 0.1);
    ASSERT_LT(++passes, 100);
  }
  EXPECT_GE(passes, 20);
  for (int i = 0; i < 6; ++i) pace.Count(3, {}, 0.2);
  EXPECT_NEAR(pace.RowSeconds(3), 0.2, 0.02);
  for (passes = 0; !pace.MeasuresRows(40); ++passes) pace.Count(40, chunk, 0.1);
  EXPECT_GE(passes, 4) << "rows that change all the time do not hold prompts up";
  EXPECT_LE(passes, 10);
}

TEST(PrefillBudget, PromptsAloneFillThePass) {
  PrefillPace pace(kStep, kMax);
  PrefillBudget budget(pace, kMax, 0);
  EXPECT_EQ(budget.Offer(0, 3000), kMax);
  budget.Take(0, 3000, 200);
  EXPECT_EQ(budget.Offer(0, 3000), kMax - 200);
  EXPECT_EQ(budget.Offer(0, 5), 5);
}

TEST(PrefillBudget, BesideOthersThereAreSixteenAtLeast) {
  const PrefillPace unknown(kStep, kMax);
  EXPECT_EQ(PrefillBudget(unknown, kMax, 2).Offer(0, 3000), 16);
  EXPECT_EQ(PrefillBudget(unknown, kMax, 2).Offer(0, 1), 1);
  EXPECT_EQ(PrefillBudget(unknown, 7, 2).Offer(0, 3000), 7);
  EXPECT_EQ(PrefillBudget(unknown, 0, 2).Offer(0, 3000), 0);
  PrefillBudget shared(unknown, kMax, 2);
  shared.Take(0, 10, 10);
  EXPECT_EQ(shared.Offer(0, 3000), 6) << "of all prompts together";
  shared.Take(0, 3000, 6);
  EXPECT_EQ(shared.Offer(0, 3000), 0);
}

TEST(PrefillBudget, APromptThatEndsWaitsForTheOthers) {
  PrefillPace pace(kStep, kMax);
  PrefillBudget budget(pace, kMax, 0);
  EXPECT_EQ(budget.Offer(0, 60), 60);
  budget.Take(0, 60, 60);
  EXPECT_EQ(budget.Offer(0, 3000), 16);
}

}  // namespace
}  // namespace kvcache::prefill_pace_test
