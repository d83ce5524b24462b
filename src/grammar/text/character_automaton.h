// Follows all patterns and lengths of a text language together, and knows from which states a text can still end.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "grammar/text/text_language.h"

namespace kvcache {

class CharacterAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;
  // Beyond so many states, so many bytes of them, or so much work, every step is dead and full() is true.
  static constexpr std::size_t kMaxStates = 200'000;
  static constexpr std::size_t kMaxBytes = std::size_t{48} << 20;
  // Until the start is known, and afterwards.
  static constexpr std::size_t kMaxStartWork = 20'000'000;
  static constexpr std::size_t kMaxWork = 400'000'000;
  // Beyond so many bytes, the steps that are remembered are forgotten.
  static constexpr std::size_t kMaxStepBytes = std::size_t{24} << 20;

  // REQUIRES: the language outlives the automaton.
  explicit CharacterAutomaton(const TextLanguage& language);

  // These return a state from which a text can end, or kDead.
  State start();
  State Next(State state, std::int32_t of_class);
  bool Accepts(State state);
  bool full() const;
  // Returns how many places of patterns and states were looked at.
  std::size_t work() const { return work_.done; }

 private:
  static constexpr State kUnknown = -2;
  enum class Fate : std::uint8_t { kUnknown, kEnds, kNever };
  struct StateData {
    std::vector<std::int32_t> parts{};  // a state of each part's pattern
    std::int64_t count = 0;             // characters so far, as far as they matter
    Fate fate = Fate::kUnknown;
    std::vector<State> next{};  // by class; empty: none is known
  };

  State StateOf(std::vector<std::int32_t> parts, std::int64_t count);
  // Forgets steps if they take too much.
  void ForgetSteps();
  // As Next, without asking where it leads.
  State Step(State state, std::int32_t of_class);
  // Returns how many characters must follow, at least.
  std::int64_t Distance(State state);
  bool CanEnd(State state);
  bool Search(State from);
  const StateData& At(State state) const { return states_[static_cast<std::size_t>(state)]; }

  const TextLanguage& language_;
  PatternWork work_;
  std::deque<PatternMatcher> matchers_;
  bool searches_ = false;  // patterns alone do not tell where a text can end
  std::vector<StateData> states_;
  std::map<std::vector<std::int32_t>, State> state_ids_;
  std::size_t bytes_ = 0;
  std::size_t step_bytes_ = 0;
  bool full_ = false;
};

}  // namespace kvcache
