#include "support/script_random.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace kvcache::testing {
namespace {

using Kind = ScriptStep::Kind;
using Call = ReferenceBackend::Call;

template <typename T>
T AnyOf(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[Between(random, 0, static_cast<int>(values.size()) - 1)];
}

int AnySequence(const DriverSetup& setup, std::mt19937& random) {
  if (Percent(random, 1)) return AnyOf(random, {-1, setup.options.max_sequences});
  return Between(random, 0, setup.options.max_sequences - 1);
}

bool Known(const DriverSetup& setup, int sequence) {
  return sequence >= 0 && sequence < setup.options.max_sequences;
}

// Returns mostly the next tokens of a few sequences, in any order.
std::vector<TestToken> RandomTokens(const DriverSetup& setup, const CacheReference& reference,
                                    std::mt19937& random) {
  const int max = setup.options.max_batch + (Percent(random, 2) ? 1 : 0);
  const int count = Percent(random, 40) ? 1 : Between(random, Percent(random, 2) ? 0 : 1, max);
  const bool one_sequence = Percent(random, 40);
  int sequence = AnySequence(setup, random);
  std::vector<Position> next(setup.options.max_sequences);
  for (int s = 0; s < setup.options.max_sequences; ++s) next[s] = reference.length(s);
  std::vector<TestToken> tokens;
  for (int i = 0; i < count; ++i) {
    if (!one_sequence) sequence = AnySequence(setup, random);
    const bool known = Known(setup, sequence);
    Position position = known ? next[sequence] : 0;
    if (Percent(random, 6)) position += Between(random, 1, 3);  // a gap
    if (Percent(random, 6)) position = Between(random, -1, setup.options.capacity + 1);
    if (known) next[sequence] = std::max(next[sequence], position + 1);
    tokens.push_back({sequence, position, 0});
  }
  if (Percent(random, 30)) std::shuffle(tokens.begin(), tokens.end(), random);
  return tokens;
}

// Returns the next tokens of some sequences, side by side: often as many of each.
std::vector<TestToken> NeighborTokens(const DriverSetup& setup, const CacheReference& reference,
                                      std::mt19937& random) {
  std::vector<int> sequences(setup.options.max_sequences);
  std::iota(sequences.begin(), sequences.end(), 0);
  std::shuffle(sequences.begin(), sequences.end(), random);
  const int max = std::min<int>(setup.options.max_batch, setup.options.max_sequences);
  sequences.resize(Between(random, 1, max));
  if (Percent(random, 50)) std::sort(sequences.begin(), sequences.end());
  const bool even = Percent(random, 40);
  const int each = setup.options.max_batch / static_cast<int>(sequences.size());
  const int per_sequence = Between(random, 1, each);
  std::vector<TestToken> tokens;
  for (const int sequence : sequences) {
    Position position = reference.length(sequence);
    const int count = even || Percent(random, 50) ? per_sequence : Between(random, 1, each);
    for (int i = 0; i < count; ++i) {
      if (Percent(random, 2)) ++position;
      tokens.push_back({sequence, position++, 0});
    }
  }
  return tokens;
}

// Adds trees of drafts to a few sequences, sometimes invalid ones.
void AddDrafts(const DriverSetup& setup, const CacheReference& reference, std::mt19937& random,
               ScriptStep& step) {
  const int count = Between(random, 1, setup.options.max_batch);
  const int sequences = Between(random, 1, std::min(2, setup.options.max_sequences));
  const int first = Between(random, 0, setup.options.max_sequences - 1);
  for (int i = 0; i < count; ++i) {
    const int sequence = (first + Between(random, 0, sequences - 1)) % setup.options.max_sequences;
    std::vector<int> parents = {-1};
    for (int j = 0; j < i; ++j) {
      if (step.tokens[j].sequence == sequence) parents.push_back(j);
    }
    const int parent = Percent(random, 1)
                           ? Between(random, -2, count)
                           : parents[Between(random, 0, static_cast<int>(parents.size()) - 1)];
    Position position = reference.length(sequence);
    if (parent >= 0 && parent < i) position = step.tokens[parent].position + 1;
    if (Percent(random, 1)) position += AnyOf(random, {-1, 1});
    step.tokens.push_back({sequence, position, 0});
    step.parents.push_back(parent);
  }
  if (Percent(random, 1)) step.parents.pop_back();
}

// Accepts a path of some sequences; sometimes two paths of one, or an invalid index.
ScriptStep RandomAccept(const CacheReference& reference, std::mt19937& random) {
  ScriptStep step{.kind = Kind::kAccept};
  const std::vector<int> drafts = reference.drafts();
  std::vector<int> sequences;
  for (int i = static_cast<int>(drafts.size()) - 1; i >= 0; --i) {
    const bool taken = std::find(sequences.begin(), sequences.end(), drafts[i]) != sequences.end();
    if (!Percent(random, taken ? 1 : 50)) continue;
    sequences.push_back(drafts[i]);
    step.accepted.push_back(i);
  }
  if (Percent(random, 2))
    step.accepted.push_back(AnyOf(random, {-1, static_cast<int>(drafts.size())}));
  return step;
}

std::vector<int> SomeIndices(std::size_t size, std::mt19937& random) {
  std::vector<int> indices;
  for (std::size_t i = 0; i < size; ++i) {
    if (Percent(random, 30)) indices.push_back(static_cast<int>(i));
  }
  if (Percent(random, 2)) indices.push_back(AnyOf(random, {-1, static_cast<int>(size)}));
  return indices;
}

ScriptStep RandomForward(const DriverSetup& setup, const CacheReference& reference,
                         std::mt19937& random) {
  ScriptStep step{.kind = Percent(random, 8) ? Kind::kReserve : Kind::kForward};
  if (Percent(random, 15)) {
    AddDrafts(setup, reference, random, step);
  } else {
    step.tokens = Percent(random, 60) ? NeighborTokens(setup, reference, random)
                                      : RandomTokens(setup, reference, random);
  }
  if (Percent(random, 8)) {  // the pass breaks off, or skips layers
    for (int layer = 0; layer < kTestLayers; ++layer) {
      if (Percent(random, 50)) step.layers.push_back(layer);
    }
  }
  if (Percent(random, 15)) step.except = SomeIndices(step.tokens.size(), random);
  if (Percent(random, step.parents.empty() ? 15 : 1)) {
    step.items = SomeIndices(step.tokens.size(), random);
  }
  return step;
}

ScriptStep RandomRemove(const DriverSetup& setup, const CacheReference& reference,
                        std::mt19937& random) {
  ScriptStep step{.kind = Kind::kRemove, .sequence = AnySequence(setup, random)};
  const Position length = Known(setup, step.sequence) ? reference.length(step.sequence) : 3;
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

// Sometimes omits the removal, so that other steps come between PrepareRestore and Remove.
ScriptStep RandomRestore(const DriverSetup& setup, const CacheReference& reference,
                         std::mt19937& random) {
  const Kind kind = Percent(random, 30) ? Kind::kPrepare : Kind::kRestore;
  ScriptStep step{.kind = kind, .sequence = AnySequence(setup, random)};
  const Position length = Known(setup, step.sequence) ? reference.length(step.sequence) : 3;
  step.begin =
      Percent(random, 40) ? length : Between(random, Percent(random, 2) ? -1 : 0, length + 1);
  return step;
}

ScriptStep RandomCopy(const DriverSetup& setup, const CacheReference& reference,
                      std::mt19937& random) {
  ScriptStep step{.kind = Kind::kCopy,
                  .sequence = AnySequence(setup, random),
                  .target = AnySequence(setup, random)};
  const Position length = Known(setup, step.sequence) ? reference.length(step.sequence) : 1;
  step.begin = Between(random, Percent(random, 2) ? -1 : 0, length + 1);
  if (Percent(random, 30)) step.begin = length;
  return step;
}

ScriptStep RandomSnapshot(const DriverSetup& setup, const CacheDriver& driver,
                          std::mt19937& random) {
  const CacheReference& reference = driver.reference();
  ScriptStep step{.sequence = AnySequence(setup, random)};
  const Position length = Known(setup, step.sequence) ? reference.length(step.sequence) : 3;
  step.slot = Between(random, 0, ScriptStep::kSlots - 1);
  const auto range = driver.snapshot(step.slot);
  const int choice = Between(random, 1, 100);
  if (choice <= 25) {
    step.kind = Kind::kSnapshot;
    step.end = Percent(random, 75) ? length : Between(random, 0, length + (Percent(random, 5)));
    step.begin = Percent(random, 40) ? 0 : Between(random, Percent(random, 2) ? -1 : 0, step.end);
    // Often next to another snapshot, so that they can be merged.
    const auto other = driver.snapshot(Between(random, 0, ScriptStep::kSlots - 1));
    if (other.has_value() && Percent(random, 50)) step.begin = other->end;
  } else if (choice <= 55) {
    step.kind = Kind::kBring;
    if (Percent(random, 10)) step.slot = -1;
    const Position end = step.slot >= 0 && range.has_value() ? range->end : length;
    step.begin = Percent(random, 70) ? end : Between(random, -1, end + 1);
  } else if (choice <= 65) {
    step.kind = Kind::kMerge;
    step.target = Between(random, 0, ScriptStep::kSlots - 1);
    for (int i = 0; i < ScriptStep::kSlots && Percent(random, 95); ++i) {
      const auto other = driver.snapshot(i);
      if (range.has_value() && other.has_value() && other->begin == range->end) step.target = i;
    }
  } else if (choice <= 72) {
    step.kind = Kind::kSplit;
    step.target = Between(random, 0, ScriptStep::kSlots - 1);
    step.begin = range.has_value() ? Between(random, range->begin, range->end) : 0;
  } else if (choice <= 77) {
    step.kind = Kind::kDrop;
  } else if (choice <= 83) {
    step.kind = Percent(random, 50) ? Kind::kMaterialize : Kind::kExport;
  } else if (choice <= 93) {
    step.kind = Kind::kCapture;
    Position next = length + (Percent(random, 3) ? -1 : 0);
    step.begin = length + (Percent(random, 5) ? Between(random, -1, 1) : 0);
    if (Percent(random, 30)) step.begin = kEachFromZero;
    for (int i = Between(random, 1, 3); i > 0; --i) {
      next += Between(random, i == 3 || Percent(random, 3) ? 0 : 1, 3);
      step.accepted.push_back(next);
    }
  } else {
    step.kind = Kind::kTake;
  }
  return step;
}

// Begins a transaction of some sequences, mostly with the lengths that they have.
ScriptStep RandomBegin(const DriverSetup& setup, const CacheDriver& driver, std::mt19937& random) {
  ScriptStep step{.kind = Kind::kBegin};
  step.slot = Between(random, 0, ScriptStep::kTransactions - 1);
  step.begin = Between(random, Percent(random, 3) ? 0 : 1, 6);
  step.isolated = Percent(random, 20);
  for (int i = Between(random, Percent(random, 3) ? 0 : 1, 2); i > 0; --i) {
    const int sequence = AnySequence(setup, random);
    const bool known = Known(setup, sequence);
    if (i == 1 && !step.tokens.empty() && step.tokens[0].sequence == sequence &&
        !Percent(random, 5)) {
      continue;
    }
    Position length = known ? driver.reference().length(sequence) : 0;
    if (Percent(random, 4)) length += Between(random, -1, 1);
    step.tokens.push_back({sequence, length, 0});
  }
  return step;
}

// Writes the next tokens of a transaction's members, as many as it has room for or fewer.
ScriptStep RandomRound(const DriverSetup& setup, const CacheDriver& driver, int slot,
                       std::mt19937& random) {
  ScriptStep step{.kind = Kind::kForward};
  for (const auto& [id, length] : driver.members(slot)) {
    const Position next = std::max(driver.reference().length(Index(id)), length);
    const Position room = std::min(length + driver.max_tokens(slot) - next,
                                   setup.options.max_batch - static_cast<int>(step.tokens.size()));
    for (Position i = 0; i < room && (i == 0 || Percent(random, 80)); ++i) {
      step.tokens.push_back({Index(id), next + i, 0});
    }
  }
  return step;
}

// Commits or rolls back a transaction, writes its sequences, or begins one.
ScriptStep RandomTransaction(const DriverSetup& setup, const CacheDriver& driver,
                             std::mt19937& random) {
  const int slot = Between(random, 0, ScriptStep::kTransactions - 1);
  const std::vector<SequenceLength>& members = driver.members(slot);
  if (members.empty()) return RandomBegin(setup, driver, random);
  if (Percent(random, 50)) {
    ScriptStep round = RandomRound(setup, driver, slot, random);
    if (!round.tokens.empty()) return round;
  }
  if (Percent(random, 35)) return {.kind = Kind::kRollBack, .slot = slot};
  ScriptStep step{.kind = Kind::kCommit, .slot = slot};
  for (const auto& [id, length] : members) {
    const Position written = std::max(driver.reference().length(Index(id)) - length, 0);
    step.accepted.push_back(
        Between(random, Percent(random, 2) ? -1 : 0, written + (Percent(random, 4) ? 1 : 0)));
  }
  if (Percent(random, 2)) step.accepted.pop_back();
  return step;
}

// Tries every way to make the script smaller: without some steps, a token, a failure or a list.
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
      if (!script[i].parents.empty()) {  // the last draft only: earlier ones may have children
        if (token + 1 < script[i].tokens.size()) continue;
        smaller[i].parents.pop_back();
      }
      smaller[i].tokens.erase(smaller[i].tokens.begin() + token);
      if (keep(std::move(smaller))) return true;
    }
    Script without_failure = script;
    without_failure[i].fail_nth = 0;
    if (script[i].fail_nth != 0 && keep(std::move(without_failure))) return true;
    for (const auto list :
         {&ScriptStep::layers, &ScriptStep::except, &ScriptStep::items, &ScriptStep::accepted}) {
      Script without = script;
      (without[i].*list).clear();
      if (!(script[i].*list).empty() && keep(std::move(without))) return true;
    }
  }
  return false;
}

}  // namespace

DriverSetup RandomSizes(std::mt19937& random) {
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
  setup.rarely_removes = Percent(random, 30);
  if (Percent(random, 15)) {  // long enough for strides of whole tiles and for several bitmap words
    setup.options.capacity += 40;
    setup.options.max_batch += 40;
  }
  return setup;
}

ScriptStep RandomStep(const DriverSetup& setup, const CacheDriver& driver, std::mt19937& random) {
  const CacheReference& reference = driver.reference();
  const bool keeps = reference.drafts().empty() ? Percent(random, 1) : Percent(random, 60);
  const bool only_grows = setup.rarely_removes && Percent(random, 75);
  const int choice = Between(random, 1, only_grows ? 58 : 100);
  const bool transactions = setup.transactions && Percent(random, 18);
  const bool snapshots = setup.snapshots && Percent(random, 35);
  ScriptStep step = keeps          ? RandomAccept(reference, random)
                    : transactions ? RandomTransaction(setup, driver, random)
                    : snapshots    ? RandomSnapshot(setup, driver, random)
                    : choice <= 54 ? RandomForward(setup, reference, random)
                    : choice <= 67 ? RandomCopy(setup, reference, random)
                    : choice <= 83 ? RandomRemove(setup, reference, random)
                    : choice <= 95 ? RandomRestore(setup, reference, random)
                    : choice <= 98
                        ? ScriptStep{.kind = Kind::kEvict, .sequence = AnySequence(setup, random)}
                        : ScriptStep{.kind = Kind::kCompact};
  if (Percent(random, 20)) {
    const bool writes = step.kind == Kind::kForward || step.kind == Kind::kReserve;
    step.fail_nth = Between(random, 1, 4);
    step.fail_call = writes
                         ? AnyOf(random, {Call::kAllocate, Call::kStore, Call::kValues, Call::kAny})
                         : AnyOf(random, {Call::kCopy, Call::kShift, Call::kAny});
    if (snapshots || Percent(random, 10)) step.fail_call = Call::kTransfer;
  }
  return step;
}

Script Shrink(Script script, const std::function<bool(const Script&)>& fails) {
  while (ShrinkOnce(script, fails)) {
  }
  return script;
}

}  // namespace kvcache::testing
