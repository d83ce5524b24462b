// Follows a pattern through a text, character by character, with states that are found as they are reached.
//
// A state is the set of places in the program where the text may be. A place may have duties: what a lookahead
// before it still expects of the text, as states of this automaton again.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "grammar/text/pattern_program.h"

namespace kvcache {

// Classes of code points that no set of some patterns tells apart.
class CharacterClasses {
 public:
  // Beyond so many intervals that sets have, all together, the classes are useless and full() is true. A set counts as
  // its complement does if that has fewer.
  static constexpr std::size_t kMaxWork = 4'000'000;

  explicit CharacterClasses(const std::vector<const CodePointSet*>& sets);

  struct Interval {
    std::uint32_t first = 0;  // up to the next interval's
    std::int32_t of_class = 0;
  };
  std::int32_t ClassOf(std::uint32_t point) const {
    return point < 128 ? ascii_[point] : intervals_[IntervalOf(point)].of_class;
  }
  std::size_t IntervalOf(std::uint32_t point) const;
  const std::vector<Interval>& intervals() const { return intervals_; }
  // Returns a code point of each class.
  const std::vector<std::uint32_t>& members() const { return members_; }
  std::size_t size() const { return members_.size(); }
  bool full() const { return work_ > kMaxWork; }
  std::size_t work() const { return work_; }

 private:
  // Tells the intervals of a set apart from all others.
  // `counts`: intervals of each class.
  void Split(const CodePointSet& set, std::vector<std::size_t>& counts);

  std::vector<Interval> intervals_;
  std::vector<std::uint32_t> members_;
  std::size_t work_ = 0;
  std::int32_t ascii_[128] = {};
};

// Counts work: a unit is a place that is looked at, some 50 ns.
struct PatternWork {
  std::size_t done = 0;
  std::size_t max = 0;

  // Returns whether there is not too much.
  bool Spend(std::size_t work) {
    done += work;
    return done <= max;
  }
};

class PatternMatcher {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;
  // Beyond so many bytes of states, or the work that is allowed, every step is dead and full() is true.
  static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;
  static constexpr std::size_t kWorkOfState = 15;  // beside its places, or of a duty
  static constexpr std::size_t kClassesOfWork =
      16;  // as much work as one place, where they are cleared

  // REQUIRES: the classes and the work outlive the matcher.
  PatternMatcher(std::shared_ptr<const PatternProgram> program, const CharacterClasses& classes,
                 PatternWork& work);

  State start() const { return start_; }
  // Returns the state behind a character of the class.
  State Next(State state, std::int32_t of_class);
  // Returns whether the text may end here.
  bool Accepts(State state);
  // Returns whether any text may follow.
  bool IsFree(State state) const { return state == free_; }
  // Returns how many characters must follow, at least.
  std::int32_t Distance(State state) const {
    return states_[static_cast<std::size_t>(state)].distance;
  }
  bool full() const { return full_; }
  std::size_t bytes() const { return bytes_; }
  // The steps that are remembered take so many bytes, which can be had back.
  std::size_t step_bytes() const { return step_bytes_; }
  void ForgetSteps();
  const PatternProgram& program() const { return *program_; }

 private:
  using Step = PatternProgram::Step;
  using Node = PatternProgram::Node;
  enum class Before : std::uint8_t { kStart, kWord, kOther };
  static constexpr State kUnknown = -2;
  static constexpr std::int32_t kNoDuty = 0;
  static constexpr std::int32_t kBroken = -1;
  static constexpr std::int32_t kTextEnd = -1;  // instead of a class

  struct Place {
    std::int32_t node = 0;
    std::int32_t duty = kNoDuty;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct StateData {
    std::vector<Place> places{};
    Before before = Before::kOther;
    std::int8_t accepts = -1;  // -1: not known
    std::int32_t distance = 0;
    std::vector<State> next{};  // by class; empty: none is known
  };
  // A state that must match up to the end, or must not.
  struct Promise {
    State state = 0;
    bool negated = false;
    friend auto operator<=>(const Promise&, const Promise&) = default;
  };
  // Collects places of a state that is being made.
  class Collector;

  const Node& NodeAt(std::int32_t node) const {
    return program_->nodes[static_cast<std::size_t>(node)];
  }
  bool IsWord(std::int32_t of_class) const {
    static const CodePointSet kWords = WordCharacters();
    return of_class != kTextEnd && Has(kWords, of_class);
  }
  bool Has(const CodePointSet& set, std::int32_t of_class) const {
    return set.Has(classes_.members()[static_cast<std::size_t>(of_class)]);
  }
  bool Spend(std::size_t work) {
    full_ = !work_.Spend(work) || full_;
    return !full_;
  }
  // Calls `take` with each place that a state's assertions allow before this class, or at the end. `take` returns
  // whether to continue.
  template <typename Take>
  void ForEachPlace(State state, std::int32_t of_class, Take&& take);
  bool Holds(Step step, Before before, std::int32_t of_class) const;
  State Step1(State state, std::int32_t of_class);
  State StateOf(std::vector<Place> places, Before before);
  State LookStart(std::int32_t node, Before before);
  // Return the duty with one more promise, or behind a character; kBroken if it cannot be kept.
  std::int32_t WithPromise(std::int32_t duty, Promise promise);
  std::int32_t DutyBehind(std::int32_t duty, std::int32_t of_class);
  std::int32_t DutyOf(std::vector<Promise> promises);
  bool IsKept(std::int32_t duty);

  std::shared_ptr<const PatternProgram> program_;
  const CharacterClasses& classes_;
  PatternWork& work_;
  std::vector<StateData> states_;
  std::map<std::pair<Before, std::vector<Place>>, State> state_ids_;
  std::vector<std::vector<Promise>> duties_;
  std::map<std::vector<Promise>, std::int32_t> duty_ids_;
  std::size_t bytes_ = 0;
  std::size_t step_bytes_ = 0;
  bool full_ = false;
  State free_ = 0;
  State start_ = kDead;
};

}  // namespace kvcache
