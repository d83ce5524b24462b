#include "grammar/text/character_automaton.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace kvcache {
CharacterAutomaton::CharacterAutomaton(const TextLanguage& language)
    : language_(language),
      work_{.done = language.classes().work(), .most = kMostStartWork},
      full_(language.classes().full()) {
  if (full_) return;
  for (const TextLanguage::Part& part : language.parts()) {
    matchers_.emplace_back(part.program, language.classes(), work_);
    searches_ = searches_ || part.negated || part.program->may_be_stuck;
  }
  const TextLengths lengths = language.lengths();
  const bool has_lengths = lengths.least > 0 || lengths.most >= 0;
  searches_ = searches_ || matchers_.size() > 1 || (has_lengths && !matchers_.empty());
}

bool CharacterAutomaton::full() const {
  std::size_t bytes = bytes_;
  for (const PatternMatcher& matcher : matchers_) {
    if (matcher.full()) return true;
    bytes += matcher.bytes();
  }
  return full_ || bytes > kMostBytes || work_.done > work_.most;
}

void CharacterAutomaton::ForgetSteps() {
  std::size_t bytes = step_bytes_;
  for (const PatternMatcher& matcher : matchers_) bytes += matcher.step_bytes();
  if (bytes < kMostStepBytes) return;
  for (StateData& state : states_) std::vector<State>().swap(state.next);
  step_bytes_ = 0;
  for (PatternMatcher& matcher : matchers_) matcher.ForgetSteps();
}

CharacterAutomaton::State CharacterAutomaton::start() {
  // Lengths alone need no search, so nothing else would find that they allow no text.
  const TextLengths lengths = language_.lengths();
  if (full() || (lengths.most >= 0 && lengths.least > lengths.most)) return kDead;
  std::vector<std::int32_t> parts;
  for (const PatternMatcher& matcher : matchers_) parts.push_back(matcher.start());
  const State state = StateOf(std::move(parts), 0);
  const bool can_end = CanEnd(state) && !full();
  if (!full()) work_.most = kMostWork;
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
  if (lengths.most >= 0 && count > lengths.most) return kDead;
  if (lengths.most < 0) count = std::min(count, lengths.least);
  std::vector<std::int32_t> key = parts;
  key.push_back(static_cast<std::int32_t>(count));
  const auto [known, is_new] =
      state_ids_.try_emplace(std::move(key), static_cast<State>(states_.size()));
  if (!is_new) return known->second;
  if (states_.size() >= kMostStates) {
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
  if (state == kDead || At(state).count < language_.lengths().least) return false;
  for (std::size_t i = 0; i < matchers_.size(); ++i) {
    if (matchers_[i].Accepts(At(state).parts[i]) == language_.parts()[i].negated) return false;
  }
  return true;
}

std::int64_t CharacterAutomaton::Distance(State state) {
  std::int64_t distance = language_.lengths().least - At(state).count;
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
  const std::int64_t most = language_.lengths().most;
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
      const bool too_long = most >= 0 && At(next).count + left > most;
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
