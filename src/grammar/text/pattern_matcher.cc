#include "grammar/text/pattern_matcher.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace kvcache {

CharacterClasses::CharacterClasses(const std::vector<const CodePointSet*>& sets) {
  std::vector<std::uint32_t> begins = {0};
  for (const CodePointSet* const set : sets) {
    for (const CodePointRange& range : set->ranges()) {
      begins.push_back(range.first);
      if (range.last < kLastCodePoint) begins.push_back(range.last + 1);
    }
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  for (const std::uint32_t begin : begins) intervals_.push_back({begin, 0});
  std::vector<std::size_t> counts = {intervals_.size()};
  for (const CodePointSet* const set : sets) Split(*set, counts);
  members_.resize(counts.size());
  for (auto at = intervals_.rbegin(); at != intervals_.rend(); ++at) {
    members_[static_cast<std::size_t>(at->of_class)] = at->first;
  }
  for (std::uint32_t point = 0; point < 128; ++point) {
    ascii_[point] = intervals_[IntervalOf(point)].of_class;
  }
}

// A part and the others are told apart alike, so the smaller one is looked at.
void CharacterClasses::Split(const CodePointSet& set, std::vector<std::size_t>& counts) {
  const auto begin_of = [this](std::uint32_t point) {
    return point > kLastCodePoint ? intervals_.size() : IntervalOf(point);
  };
  const auto count_of = [&](const CodePointSet& of) {
    std::size_t count = 0;
    for (const CodePointRange& range : of.ranges()) {
      count += begin_of(range.last + 1) - begin_of(range.first);
    }
    return count;
  };
  const std::size_t count = count_of(set);
  const CodePointSet part = 2 * count > intervals_.size() ? set.Complement() : set;
  work_ += std::min(count, intervals_.size() - count) + part.ranges().size();
  if (full()) return;
  std::unordered_map<std::int32_t, std::vector<std::size_t>> found;  // by class
  for (const CodePointRange& range : part.ranges()) {
    const std::size_t end = begin_of(range.last + 1);
    for (std::size_t i = begin_of(range.first); i < end; ++i) {
      found[intervals_[i].of_class].push_back(i);
    }
  }
  for (const auto& [of_class, intervals] : found) {
    if (intervals.size() == counts[static_cast<std::size_t>(of_class)]) continue;
    counts[static_cast<std::size_t>(of_class)] -= intervals.size();
    counts.push_back(intervals.size());
    for (const std::size_t i : intervals) {
      intervals_[i].of_class = static_cast<std::int32_t>(counts.size()) - 1;
    }
  }
}

std::size_t CharacterClasses::IntervalOf(std::uint32_t point) const {
  const auto after =
      std::upper_bound(intervals_.begin(), intervals_.end(), point,
                       [](std::uint32_t a, const Interval& b) { return a < b.first; });
  return static_cast<std::size_t>(after - intervals_.begin()) - 1;
}

// Follows forks, so that equal places are found once.
class PatternMatcher::Collector {
 public:
  explicit Collector(PatternMatcher& matcher) : matcher_(matcher) {}

  void Add(Place place) {
    open_.push_back(place);
    while (!open_.empty()) {
      const Place at = open_.back();
      open_.pop_back();
      if (!matcher_.Spend(1)) return;
      if (!seen_.insert(Key(at)).second) continue;
      const Node& node = matcher_.NodeAt(at.node);
      if (node.step != Step::kFork) {
        places_.push_back(at);
        continue;
      }
      open_.push_back({node.other, at.duty});
      open_.push_back({node.next, at.duty});
    }
  }
  std::vector<Place> Take() {
    std::sort(places_.begin(), places_.end());
    return std::move(places_);
  }
  // The places so far; more may come while they are read by index.
  const std::vector<Place>& places() const { return places_; }

 private:
  static std::uint64_t Key(Place place) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(place.duty)) << 32 |
           static_cast<std::uint32_t>(place.node);
  }

  PatternMatcher& matcher_;
  std::vector<Place> open_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<Place> places_;
};

PatternMatcher::PatternMatcher(std::shared_ptr<const PatternProgram> program,
                               const CharacterClasses& classes, PatternWork& work)
    : program_(std::move(program)), classes_(classes), work_(work) {
  duties_.emplace_back();
  duty_ids_[{}] = kNoDuty;
  std::int32_t accept = 0;  // the first node
  free_ = StateOf({{accept, kNoDuty}}, Before::kOther);
  start_ = LookStart(program_->start, Before::kStart);
}

void PatternMatcher::ForgetSteps() {
  for (StateData& state : states_) std::vector<State>().swap(state.next);
  step_bytes_ = 0;
}

PatternMatcher::State PatternMatcher::LookStart(std::int32_t node, Before before) {
  Collector collector(*this);
  collector.Add({node, kNoDuty});
  return StateOf(collector.Take(), before);
}

PatternMatcher::State PatternMatcher::StateOf(std::vector<Place> places, Before before) {
  if (places.empty() || !Spend(kWorkOfState + places.size())) return kDead;
  const bool is_free = std::any_of(places.begin(), places.end(), [this](const Place& place) {
    return place.duty == kNoDuty && NodeAt(place.node).step == Step::kAccept;
  });
  if (is_free) {
    places = {{0, kNoDuty}};
    before = Before::kOther;
  }
  const auto [known, is_new] =
      state_ids_.try_emplace({before, places}, static_cast<State>(states_.size()));
  if (!is_new) return known->second;
  StateData data{.before = before, .distance = PatternProgram::kNever};
  for (const Place& place : places) {
    std::int32_t distance = program_->distance[static_cast<std::size_t>(place.node)];
    for (const Promise& promise : duties_[static_cast<std::size_t>(place.duty)]) {
      if (!promise.negated) distance = std::max(distance, Distance(promise.state));
    }
    data.distance = std::min(data.distance, distance);
  }
  bytes_ += 200 + 2 * places.size() * sizeof(Place);
  data.places = std::move(places);
  states_.push_back(std::move(data));
  full_ = full_ || bytes_ > kMaxBytes;
  return known->second;
}

bool PatternMatcher::Holds(Step step, Before before, std::int32_t of_class) const {
  if (step == Step::kBegin) return before == Before::kStart;
  if (step == Step::kEnd) return of_class == kTextEnd;
  const bool is_boundary = (before == Before::kWord) != IsWord(of_class);
  return is_boundary == (step == Step::kBoundary);
}

template <typename Take>
void PatternMatcher::ForEachPlace(State state, std::int32_t of_class, Take&& take) {
  const Before before = states_[static_cast<std::size_t>(state)].before;
  const std::vector<Place> own = states_[static_cast<std::size_t>(state)].places;
  Collector more(*this);
  std::size_t read = 0;
  for (std::size_t i = 0; i < own.size() || read < more.places().size();) {
    const Place place = i < own.size() ? own[i++] : more.places()[read++];
    if (!Spend(1)) return;
    const Node& node = NodeAt(place.node);
    if (node.step == Step::kSet || node.step == Step::kAccept) {
      if (!take(place)) return;
    } else if (node.step == Step::kLook || node.step == Step::kNoLook) {
      const Promise promise{LookStart(node.other, before), node.step == Step::kNoLook};
      const std::int32_t duty = WithPromise(place.duty, promise);
      if (duty != kBroken) more.Add({node.next, duty});
    } else if (Holds(node.step, before, of_class)) {
      more.Add({node.next, place.duty});
    }
  }
}

PatternMatcher::State PatternMatcher::Step1(State state, std::int32_t of_class) {
  Collector collector(*this);
  ForEachPlace(state, of_class, [&](Place place) {
    const Node& node = NodeAt(place.node);
    const bool is_accept = node.step == Step::kAccept;
    if (!is_accept && !Has(program_->sets[static_cast<std::size_t>(node.set)], of_class)) {
      return true;
    }
    const std::int32_t duty = DutyBehind(place.duty, of_class);
    if (duty != kBroken) collector.Add({is_accept ? place.node : node.next, duty});
    return true;
  });
  const bool after_word = program_->has_boundaries && IsWord(of_class);
  return StateOf(collector.Take(), after_word ? Before::kWord : Before::kOther);
}

PatternMatcher::State PatternMatcher::Next(State state, std::int32_t of_class) {
  if (state == kDead || state == free_) return state;
  const auto at = static_cast<std::size_t>(state);
  if (states_[at].next.empty()) {
    if (!Spend(classes_.size() / kClassesOfWork)) return kDead;
    states_[at].next.assign(classes_.size(), kUnknown);
    step_bytes_ += classes_.size() * sizeof(State);
  }
  const State known = states_[at].next[static_cast<std::size_t>(of_class)];
  if (known != kUnknown) return known;
  const State next = Step1(state, of_class);
  if (!full_) states_[at].next[static_cast<std::size_t>(of_class)] = next;
  return full_ ? kDead : next;
}

bool PatternMatcher::Accepts(State state) {
  if (state == kDead) return false;
  const auto at = static_cast<std::size_t>(state);
  if (states_[at].accepts >= 0) return states_[at].accepts != 0;
  bool accepts = false;
  ForEachPlace(state, kTextEnd, [&](Place place) {
    accepts = NodeAt(place.node).step == Step::kAccept && IsKept(place.duty);
    return !accepts;
  });
  states_[at].accepts = accepts ? 1 : 0;
  return accepts;
}

bool PatternMatcher::IsKept(std::int32_t duty) {
  const std::vector<Promise> promises = duties_[static_cast<std::size_t>(duty)];
  return std::all_of(promises.begin(), promises.end(), [this](const Promise& promise) {
    return Accepts(promise.state) != promise.negated;
  });
}

std::int32_t PatternMatcher::DutyOf(std::vector<Promise> promises) {
  std::sort(promises.begin(), promises.end());
  promises.erase(std::unique(promises.begin(), promises.end()), promises.end());
  const auto [known, is_new] =
      duty_ids_.try_emplace(promises, static_cast<std::int32_t>(duties_.size()));
  if (is_new) {
    bytes_ += 100 + promises.size() * sizeof(Promise);
    duties_.push_back(std::move(promises));
  }
  return known->second;
}

std::int32_t PatternMatcher::WithPromise(std::int32_t duty, Promise promise) {
  if (promise.state == kDead) return promise.negated ? duty : kBroken;
  if (promise.state == free_) return promise.negated ? kBroken : duty;
  std::vector<Promise> promises = duties_[static_cast<std::size_t>(duty)];
  promises.push_back(promise);
  return DutyOf(std::move(promises));
}

std::int32_t PatternMatcher::DutyBehind(std::int32_t duty, std::int32_t of_class) {
  if (duty == kNoDuty) return kNoDuty;
  std::vector<Promise> kept;
  const std::vector<Promise> promises = duties_[static_cast<std::size_t>(duty)];
  if (!Spend(kWorkOfState + 4 * promises.size())) return kBroken;
  for (const Promise& promise : promises) {
    const State next = Next(promise.state, of_class);
    if (next == kDead && !promise.negated) return kBroken;
    if (next == free_ && promise.negated) return kBroken;
    if (next != kDead && next != free_) kept.push_back({next, promise.negated});
  }
  return DutyOf(std::move(kept));
}

}  // namespace kvcache
