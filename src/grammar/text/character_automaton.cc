#include "grammar/text/character_automaton.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace kvcache {
namespace {

using Step = PatternProgram::Step;

// Patterns are compared only if that takes at most so many lookups of a class in a set.
constexpr std::size_t kMaxLookups = 2'000'000;

// The classes of characters that a text may have, by the patterns that it must match.
class Alphabet {
 public:
  explicit Alphabet(const CharacterClasses& classes)
      : classes_(classes), has_(classes.size(), true) {}

  // Keeps the classes on the pattern's paths from its start to its end. Returns whether such a path exists. Ignores
  // lookaheads and boundaries, which only remove paths.
  bool Restrict(const PatternProgram& program) {
    std::vector<char> reached(program.nodes.size(), 0);
    std::vector<bool> kept(has_.size(), false);
    std::vector<std::int32_t> open = {program.start};
    bool ends = false;
    while (!open.empty()) {
      const auto at = static_cast<std::size_t>(open.back());
      open.pop_back();
      if (program.distance[at] >= PatternProgram::kNever || reached[at] != 0) continue;
      reached[at] = 1;
      const PatternProgram::Node& node = program.nodes[at];
      ends = ends || node.step == Step::kEnd || node.step == Step::kAccept;
      if (node.step == Step::kEnd) continue;
      if (node.step == Step::kAccept) {
        std::fill(kept.begin(), kept.end(), true);  // anything may follow
        continue;
      }
      if (node.step == Step::kFork) open.push_back(node.other);
      const bool passes =
          node.step != Step::kSet || Keep(program.sets[static_cast<std::size_t>(node.set)], kept);
      if (passes) open.push_back(node.next);
    }
    for (std::size_t i = 0; i < has_.size(); ++i) has_[i] = has_[i] && kept[i];
    return ends;
  }

 private:
  // Marks the classes of a set that a text may have. Returns whether there are any.
  bool Keep(const CodePointSet& set, std::vector<bool>& kept) const {
    bool any = false;
    for (std::size_t i = 0; i < has_.size(); ++i) {
      if (!has_[i] || !set.Has(classes_.members()[i])) continue;
      kept[i] = true;
      any = true;
    }
    return any;
  }

  const CharacterClasses& classes_;
  std::vector<bool> has_;  // [class]
};

// Returns false if a pattern needs a character that no text of another pattern has. Without this check, a search goes
// through all texts of the other pattern.
bool HaveCommonCharacters(const TextLanguage& language, PatternWork& work) {
  std::size_t lookups = 0;
  for (const TextLanguage::Part& part : language.parts()) {
    lookups += 2 * part.program->nodes.size() * language.classes().size();
  }
  if (language.parts().size() < 2 || lookups > kMaxLookups) return true;
  work.done += lookups / PatternMatcher::kClassesOfWork;
  Alphabet alphabet(language.classes());
  for (int round = 0; round < 2; ++round) {
    for (const TextLanguage::Part& part : language.parts()) {
      if (!part.negated && !alphabet.Restrict(*part.program)) return false;
    }
  }
  return true;
}

}  // namespace

CharacterAutomaton::CharacterAutomaton(const TextLanguage& language)
    : language_(language),
      work_{.done = language.classes().work(), .max = kMaxStartWork},
      full_(language.classes().full()) {
  if (full_) return;
  for (const TextLanguage::Part& part : language.parts()) {
    matchers_.emplace_back(part.program, language.classes(), work_);
    searches_ = searches_ || part.negated || part.program->may_be_stuck;
  }
  const TextLengths lengths = language.lengths();
  const bool has_lengths = lengths.min > 0 || lengths.max >= 0;
  searches_ = searches_ || matchers_.size() > 1 || (has_lengths && !matchers_.empty());
}

bool CharacterAutomaton::full() const {
  std::size_t bytes = bytes_;
  for (const PatternMatcher& matcher : matchers_) {
    if (matcher.full()) return true;
    bytes += matcher.bytes();
  }
  return full_ || bytes > kMaxBytes || work_.done > work_.max;
}

void CharacterAutomaton::ForgetSteps() {
  std::size_t bytes = step_bytes_;
  for (const PatternMatcher& matcher : matchers_) bytes += matcher.step_bytes();
  if (bytes < kMaxStepBytes) return;
  for (StateData& state : states_) std::vector<State>().swap(state.next);
  step_bytes_ = 0;
  for (PatternMatcher& matcher : matchers_) matcher.ForgetSteps();
}

CharacterAutomaton::State CharacterAutomaton::start() {
  // Lengths alone need no search, so nothing else would find that they allow no text.
  const TextLengths lengths = language_.lengths();
  if (full() || (lengths.max >= 0 && lengths.min > lengths.max)) return kDead;
  if (!HaveCommonCharacters(language_, work_)) return kDead;
  std::vector<std::int32_t> parts;
  for (const PatternMatcher& matcher : matchers_) parts.push_back(matcher.start());
  const State state = StateOf(std::move(parts), 0);
  const bool can_end = CanEnd(state) && !full();
  if (!full()) work_.max = kMaxWork;
  return can_end ? state : kDead;
}

CharacterAutomaton::State CharacterAutomaton::StateOf(std::vector<std::int32_t> parts,
                                                      std::int64_t count) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool lost = language_.parts()[i].negated ? matchers_[i].IsFree(parts[i])
                                                   : parts[i] == PatternMatcher::kDead;
    if (lost) return kDead;
  }
  const TextLengths lengths = language_.lengths();
  if (lengths.max >= 0 && count > lengths.max) return kDead;
  if (lengths.max < 0) count = std::min(count, lengths.min);
  std::vector<std::int32_t> key = parts;
  key.push_back(static_cast<std::int32_t>(count));
  const auto [known, is_new] =
      state_ids_.try_emplace(std::move(key), static_cast<State>(states_.size()));
  if (!is_new) return known->second;
  if (states_.size() >= kMaxStates) {
    full_ = true;
    return kDead;
  }
  work_.Spend(PatternMatcher::kWorkOfState);
  bytes_ += 200 + 2 * parts.size() * sizeof(State);
  states_.push_back({.parts = std::move(parts), .count = count});
  return known->second;
}

CharacterAutomaton::State CharacterAutomaton::Step(State state, std::int32_t of_class) {
  const auto at = static_cast<std::size_t>(state);
  if (states_[at].next.empty()) {
    ForgetSteps();
    const std::size_t classes = language_.classes().size();
    states_[at].next.assign(classes, kUnknown);
    step_bytes_ += classes * sizeof(State);
    work_.Spend(classes / PatternMatcher::kClassesOfWork);
  }
  const State known = states_[at].next[static_cast<std::size_t>(of_class)];
  if (known != kUnknown) return known;
  std::vector<std::int32_t> parts = states_[at].parts;
  work_.Spend(1 + parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = matchers_[i].Next(parts[i], of_class);
  const State next = StateOf(std::move(parts), states_[at].count + 1);
  if (!full()) states_[at].next[static_cast<std::size_t>(of_class)] = next;
  return next;
}

CharacterAutomaton::State CharacterAutomaton::Next(State state, std::int32_t of_class) {
  if (state == kDead) return kDead;
  const State next = Step(state, of_class);
  return next != kDead && CanEnd(next) ? next : kDead;
}

bool CharacterAutomaton::Accepts(State state) {
  if (state == kDead || At(state).count < language_.lengths().min) return false;
  for (std::size_t i = 0; i < matchers_.size(); ++i) {
    if (matchers_[i].Accepts(At(state).parts[i]) == language_.parts()[i].negated) return false;
  }
  return true;
}

std::int64_t CharacterAutomaton::Distance(State state) {
  std::int64_t distance = language_.lengths().min - At(state).count;
  for (std::size_t i = 0; i < matchers_.size(); ++i) {
    if (language_.parts()[i].negated) continue;
    distance = std::max<std::int64_t>(distance, matchers_[i].Distance(At(state).parts[i]));
  }
  return std::max<std::int64_t>(distance, 0);
}

bool CharacterAutomaton::CanEnd(State state) {
  if (state == kDead) return false;
  if (!searches_ || At(state).fate == Fate::kEnds) return true;
  return At(state).fate != Fate::kNever && Search(state);
}

// Looks for an end, where few characters are left first.
bool CharacterAutomaton::Search(State from) {
  using Entry = std::tuple<std::int64_t, std::int64_t, State>;  // distance, -depth, state
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::unordered_map<State, State> before = {{from, kDead}};
  const std::int64_t max = language_.lengths().max;
  if (Distance(from) < PatternProgram::kNever) open.emplace(Distance(from), 0, from);
  while (!open.empty()) {
    const auto [distance, depth, state] = open.top();
    open.pop();
    if (At(state).fate == Fate::kEnds || Accepts(state)) {
      for (State at = state; at != kDead; at = before[at]) {
        states_[static_cast<std::size_t>(at)].fate = Fate::kEnds;
      }
      return true;
    }
    work_.Spend(language_.classes().size() / 4);
    if (full()) return false;
    for (std::size_t i = 0; i < language_.classes().size() && !full(); ++i) {
      const State next = Step(state, static_cast<std::int32_t>(i));
      if (next == kDead || At(next).fate == Fate::kNever) continue;
      const std::int64_t left = Distance(next);
      const bool too_long = max >= 0 && At(next).count + left > max;
      if (too_long || left >= PatternProgram::kNever) continue;
      if (before.try_emplace(next, state).second) open.emplace(left, depth - 1, next);
    }
  }
  if (full()) return false;
  for (const auto& [state, its] : before)
    states_[static_cast<std::size_t>(state)].fate = Fate::kNever;
  return false;
}

}  // namespace kvcache
