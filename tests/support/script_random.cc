#include "support/script_random.h"

#include <algorithm>
#include <utility>

namespace kvcache::testing {
namespace {

using Kind = ScriptStep::Kind;
using Call = ReferenceBackend::Call;

// [low, high]
int Between(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

bool Percent(std::mt19937& random, int percent) {
  return Between(random, 1, 100) <= percent;
}

template <typename T>
T AnyOf(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[Between(random, 0, static_cast<int>(values.size()) - 1)];
}

int AnySequence(const NaiveCache& naive, std::mt19937& random) {
  if (Percent(random, 1)) return AnyOf(random, {-1, naive.sequences()});
  return Between(random, 0, naive.sequences() - 1);
}

// Mostly the next tokens of a few sequences, in any order.
std::vector<TestToken> RandomTokens(const DriverSetup& setup, const NaiveCache& naive,
                                    std::mt19937& random) {
  const int most = setup.options.max_batch + (Percent(random, 2) ? 1 : 0);
  const int count = Percent(random, 40) ? 1 : Between(random, Percent(random, 2) ? 0 : 1, most);
  const bool one_sequence = Percent(random, 40);
  int sequence = AnySequence(naive, random);
  std::vector<Position> next(naive.sequences());
  for (int s = 0; s < naive.sequences(); ++s) next[s] = naive.length(s);
  std::vector<TestToken> tokens;
  for (int i = 0; i < count; ++i) {
    if (!one_sequence) sequence = AnySequence(naive, random);
    const bool known = sequence >= 0 && sequence < naive.sequences();
    Position position = known ? next[sequence] : 0;
    if (Percent(random, 6)) position += Between(random, 1, 3);  // a gap
    if (Percent(random, 6)) position = Between(random, -1, setup.options.capacity + 1);
    if (known) next[sequence] = std::max(next[sequence], position + 1);
    tokens.push_back({sequence, position, 0});
  }
  if (Percent(random, 30)) std::shuffle(tokens.begin(), tokens.end(), random);
  return tokens;
}

ScriptStep RandomForward(const DriverSetup& setup, const NaiveCache& naive, std::mt19937& random) {
  ScriptStep step{.kind = Percent(random, 8) ? Kind::kReserve : Kind::kForward};
  step.tokens = RandomTokens(setup, naive, random);
  if (Percent(random, 12)) {  // the pass breaks off, or skips layers
    for (int layer = 0; layer < CacheDriver::kLayers; ++layer) {
      if (Percent(random, 50)) step.layers.push_back(layer);
    }
  }
  return step;
}

ScriptStep RandomRemove(const NaiveCache& naive, std::mt19937& random) {
  ScriptStep step{.kind = Kind::kRemove, .sequence = AnySequence(naive, random)};
  const bool known = step.sequence >= 0 && step.sequence < naive.sequences();
  const Position length = known ? naive.length(step.sequence) : 3;
  if (Percent(random, 15)) {
    step.end = kEndOfSequence;
    return step;
  }
  step.begin = Between(random, Percent(random, 2) ? -1 : 0, length + 1);
  if (Percent(random, 40)) {
    step.end = kEndOfSequence;
  } else {
    step.end = step.begin + Between(random, Percent(random, 3) ? -1 : 0, 3);
  }
  return step;
}

ScriptStep RandomCopy(const NaiveCache& naive, std::mt19937& random) {
  ScriptStep step{.kind = Kind::kCopy,
                  .sequence = AnySequence(naive, random),
                  .target = AnySequence(naive, random)};
  const bool known = step.sequence >= 0 && step.sequence < naive.sequences();
  const Position length = known ? naive.length(step.sequence) : 1;
  step.begin = Between(random, Percent(random, 2) ? -1 : 0, length + 1);
  return step;
}

// Every way to make a script one step, token or failure smaller.
bool ShrinkOnce(Script& script, const std::function<bool(const Script&)>& fails) {
  const auto keep = [&](Script smaller) {
    if (!fails(smaller)) return false;
    script = std::move(smaller);
    return true;
  };
  for (std::size_t chunk = std::max<std::size_t>(script.size() / 2, 1); chunk > 0; chunk /= 2) {
    for (std::size_t begin = 0; begin + chunk <= script.size(); begin += chunk) {
      Script smaller = script;
      smaller.erase(smaller.begin() + begin, smaller.begin() + begin + chunk);
      if (keep(std::move(smaller))) return true;
    }
  }
  for (std::size_t i = 0; i < script.size(); ++i) {
    for (std::size_t token = 0; token < script[i].tokens.size(); ++token) {
      Script smaller = script;
      smaller[i].tokens.erase(smaller[i].tokens.begin() + token);
      if (keep(std::move(smaller))) return true;
    }
    Script without_failure = script;
    without_failure[i].fail_nth = 0;
    if (script[i].fail_nth != 0 && keep(std::move(without_failure))) return true;
    Script all_layers = script;
    all_layers[i].layers.clear();
    if (!script[i].layers.empty() && keep(std::move(all_layers))) return true;
  }
  return false;
}

}  // namespace

DriverSetup RandomSetup(std::mt19937& random) {
  DriverSetup setup;
  setup.options.max_sequences = Between(random, 1, 4);
  setup.options.capacity = Between(random, 1, 10);
  setup.options.max_batch = Between(random, 1, 6);
  setup.options.k_type = AnyOf(random, {DType::kF32, DType::kF16, DType::kBF16});
  setup.options.v_type = AnyOf(random, {DType::kF32, DType::kF16, DType::kBF16});
  setup.config.layout = AnyOf(random, {KvLayout::kPlain, KvLayout::kPlain, KvLayout::kTiled});
  setup.config.cell_padding = AnyOf(random, {1, 1, 2, 3, 4, 16});
  setup.config.batch_padding = AnyOf(random, {1, 1, 3, 4});
  setup.config.v_transposed = setup.config.layout == KvLayout::kPlain && Percent(random, 40);
  setup.config.mask_type = AnyOf(random, {DType::kF32, DType::kF16});
  setup.can_shift = !Percent(random, 10);
  if (Percent(random, 10)) {  // long enough for homes to be apart by tiles, and for many words
    setup.options.capacity += 40;
    setup.options.max_batch += 40;
  }
  return setup;
}

ScriptStep RandomStep(const DriverSetup& setup, const NaiveCache& naive, std::mt19937& random) {
  const int choice = Between(random, 1, 100);
  ScriptStep step = choice <= 52   ? RandomForward(setup, naive, random)
                    : choice <= 68 ? RandomCopy(naive, random)
                                   : RandomRemove(naive, random);
  if (Percent(random, 8)) {
    step.fail_nth = Between(random, 1, 4);
    step.fail_call = step.kind == Kind::kRemove
                         ? AnyOf(random, {Call::kCopy, Call::kShift, Call::kAny})
                         : AnyOf(random, {Call::kAllocate, Call::kStore, Call::kAny});
  }
  return step;
}

Script Shrink(Script script, const std::function<bool(const Script&)>& fails) {
  while (ShrinkOnce(script, fails)) {
  }
  return script;
}

}  // namespace kvcache::testing
