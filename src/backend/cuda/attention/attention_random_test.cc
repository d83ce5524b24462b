// Compares attention on a device with the CPU backend's, as bytes, in random scenes: types, heads, layouts, runs of
// cells, forks, windows, chunks, sinks, caps, biases, several queries of a sequence. Cells that no history
// holds are NaN.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cuda/attention/attention_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::attention_random_test {
namespace {

using cpu::QueryAt;
using cpu::Rules;
using cpu::Scene;
using cpu::SceneOptions;
using Runs = std::vector<HistoryRun>;

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}

  // A number in [low, high].
  int Draw(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint_fast32_t>(high - low + 1));
  }
  bool OneIn(int n) { return Draw(1, n) == 1; }
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Draw(0, static_cast<int>(values.size()) - 1)];
  }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

int DimOf(DType type, Dice& dice) {
  if (cpu::IsKvBlockType(type)) return 32 * dice.Draw(1, 4);
  return dice.OneIn(2) ? dice.OneOf({16, 32, 64, 80, 128}) : dice.Draw(1, 70);
}

SceneOptions RandomOptions(Dice& dice) {
  SceneOptions o;
  o.k_type =
      dice.OneOf({DType::kF32, DType::kF16, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0});
  o.v_type = dice.OneOf({DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0});
  const int kv_heads = dice.Draw(1, 2);
  o.shape = {kv_heads, DimOf(o.k_type, dice), DimOf(o.v_type, dice)};
  o.heads = kv_heads * dice.OneOf({1, 2, 3, 4, 4, 5, 8, 8, 12, 16, 20});
  const bool blocks = cpu::IsKvBlockType(o.k_type) || cpu::IsKvBlockType(o.v_type);
  if (o.k_type == DType::kQ8_0 && dice.OneIn(3)) {
    o.shape.v_in_k = true;
    o.v_type = o.k_type;
    o.shape.v_dim = 32 * dice.Draw(1, o.shape.k_dim / 32);
  }
  if (!blocks && dice.OneIn(4)) {
    o.shape.v_in_k = true;
    o.v_type = o.k_type;
    o.shape.v_dim = dice.Draw(1, o.shape.k_dim);
  }
  if (!blocks && dice.OneIn(5)) {
    o.layout = KvLayout::kPlain;
    o.v_transposed = !o.shape.v_in_k && dice.OneIn(2);
  }
  return o;
}

// Takes cells from a layer that nobody has yet.
class FreeCells {
 public:
  explicit FreeCells(Dice& dice) : dice_(dice) {}

  std::int32_t Take(int length) {
    next_ += dice_.OneIn(3) ? (16 - next_ % 16) % 16 : dice_.Draw(0, 20);
    const std::int32_t cell = next_;
    next_ += length;
    return cell;
  }

 private:
  Dice& dice_;
  std::int32_t next_ = 0;
};

// Appends `length` positions from `begin` on: in one run, in a few, in single cells, or with holes.
void Append(Runs& runs, Position begin, int length, FreeCells& cells, Dice& dice) {
  const int kind = dice.Draw(0, 4);
  std::vector<std::int32_t> single;
  if (kind == 3 && length < 120) {
    const std::int32_t first = cells.Take(length);
    for (int i = 0; i < length; ++i) single.push_back(first + i);
    std::shuffle(single.begin(), single.end(), dice.random());
  }
  for (Position p = begin; p < begin + length;) {
    const int left = begin + length - p;
    if (kind == 4 && dice.OneIn(3)) {
      p += std::min(left, dice.Draw(1, 40));
      continue;
    }
    int run = kind <= 1 ? left : std::min(left, dice.Draw(1, 100));
    if (!single.empty()) run = 1;
    const std::int32_t cell =
        single.empty() ? cells.Take(run) : single[static_cast<std::size_t>(p - begin)];
    runs.push_back({p, cell, run});
    p += run;
  }
}

// The runs before `position`.
Runs Before(const Runs& runs, Position position) {
  Runs before;
  for (HistoryRun run : runs) {
    run.length = std::min(run.length, position - run.position);
    if (run.length > 0) before.push_back(run);
  }
  return before;
}

std::vector<Runs> RandomHistories(Dice& dice) {
  FreeCells cells(dice);
  std::vector<Runs> histories;
  const int count = dice.Draw(1, 4);
  for (int i = 0; i < count; ++i) {
    Runs runs;
    const int length = dice.OneOf({1, 15, 100, 256, 300, 600}) + dice.Draw(0, 30);
    if (i > 0 && dice.OneIn(2)) {  // a fork of an earlier one
      const Runs& from = histories[static_cast<std::size_t>(dice.Draw(0, i - 1))];
      if (!from.empty()) {
        const Position end = from.back().position + from.back().length;
        const Position fork = dice.OneIn(2) ? end : dice.Draw(0, end);
        runs = Before(from, fork);
        Append(runs, fork, dice.Draw(1, 40), cells, dice);
        histories.push_back(runs);
        continue;
      }
    }
    if (!dice.OneIn(8)) Append(runs, dice.OneIn(3) ? dice.Draw(0, 2000) : 0, length, cells, dice);
    histories.push_back(runs);
  }
  return histories;
}

std::vector<QueryAt> RandomBatch(const std::vector<Runs>& histories, Dice& dice) {
  std::vector<QueryAt> batch;
  const bool images = dice.OneIn(4);
  for (std::size_t s = 0; s < histories.size(); ++s) {
    const Position end =
        histories[s].empty() ? 9 : histories[s].back().position + histories[s].back().length;
    const int tokens = dice.OneOf({0, 1, 1, 1, 2, 3, 5, 9, 33});
    for (int i = 0; i < tokens; ++i) {
      const Position position = dice.OneIn(12) ? dice.Draw(0, end) : std::max(end - 1 - i, 0);
      batch.push_back({static_cast<int>(s), position, images && dice.OneIn(3)});
    }
  }
  if (batch.empty()) batch.push_back({0, 40});
  if (dice.OneIn(3)) std::shuffle(batch.begin(), batch.end(), dice.random());
  return batch;
}

Rules RandomRules(int heads, Dice& dice) {
  Rules rules;
  if (dice.OneIn(3)) rules.window = dice.OneOf({1, 5, 100, 256, 300, 10000});
  if (dice.OneIn(4)) rules.chunk = dice.OneOf({64, 100, 512});
  rules.scale = dice.OneOf({0.125f, 0.3f, 12.0f});
  if (dice.OneIn(4)) rules.soft_cap = dice.OneOf({2.0f, 30.0f});
  if (dice.OneIn(3)) {
    for (int i = 0; i < heads; ++i) {
      rules.sinks.push_back(static_cast<float>(dice.Draw(-400, 400)) * 0.02f);
    }
  }
  if (dice.OneIn(4)) {
    rules.past = dice.Draw(0, 300);
    rules.future = dice.Draw(0, 40);
    for (int i = 0; i < heads * (rules.past + 1 + rules.future); ++i) {
      rules.bias.push_back(static_cast<float>(dice.Draw(-100, 100)) * 0.03f);
    }
  }
  return rules;
}

class RandomAttention : public ::testing::TestWithParam<int> {};

TEST_P(RandomAttention, HasTheBitsOfTheCpu) {
  constexpr std::size_t kSmall = std::size_t{99} << 10;
  constexpr std::size_t kLarge = std::size_t{227} << 10;
  const auto seed = static_cast<std::uint32_t>(GetParam());
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.seed = seed + 1, .shared_bytes = seed % 3 == 0 ? kSmall : kLarge});
  Dice dice(seed);
  for (int i = 0; i < 6; ++i) {
    const SceneOptions options = RandomOptions(dice);
    Scene scene(options, RandomHistories(dice));
    scene.Fill(*host);
    const std::vector<QueryAt> batch = RandomBatch(scene.runs(), dice);
    const Rules rules = RandomRules(options.heads, dice);
    ASSERT_TRUE(cpu::SameBits(cpu::Attend(device, scene, batch, rules),
                              cpu::Attend(*host, scene, batch, rules)))
        << "case " << i << ": " << InfoOf(options.k_type).name << " " << InfoOf(options.v_type).name
        << ", " << options.heads << " of " << options.shape.kv_heads << " heads of "
        << options.shape.k_dim << " and " << options.shape.v_dim
        << (options.shape.v_in_k ? " in K" : "")
        << (options.layout == KvLayout::kPlain ? ", plain" : "") << ", " << batch.size()
        << " queries, window " << rules.window << ", chunk " << rules.chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomAttention, ::testing::Range(0, 12));

}  // namespace
}  // namespace kvcache::cuda::attention_random_test
