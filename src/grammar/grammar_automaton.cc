#include "grammar/grammar_automaton.h"

#include <algorithm>
#include <utility>

namespace kvcache {

GrammarAutomaton::GrammarAutomaton(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)) {
  for (const auto& language : grammar_->languages) readers_.push_back(language->Reader());
  CloseRule(grammar_->root, kEnd);
  start_ = Found();
}

const GrammarSequence& GrammarAutomaton::SequenceAt(const Place& place) const {
  return grammar_
      ->rules[static_cast<std::size_t>(place.rule)][static_cast<std::size_t>(place.alternative)];
}

std::int32_t GrammarAutomaton::PlaceId(const Place& place) {
  const auto [found, is_new] =
      place_ids_.try_emplace(place, static_cast<std::int32_t>(places_.size()));
  if (is_new) places_.push_back(place);
  return found->second;
}

// A rule at the end of an alternative continues where that one's rule does, so lists need no stack.
void GrammarAutomaton::Close(Place place) {
  while (static_cast<std::size_t>(place.index) == SequenceAt(place).size()) {
    if (place.parent == kEnd) {
      found_end_ = true;
      return;
    }
    place = places_[static_cast<std::size_t>(place.parent)];
  }
  const GrammarSymbol symbol = SymbolAt(place);
  if (symbol.kind == GrammarSymbol::Kind::kSet) {
    found_.push_back(PlaceId(place));
    return;
  }
  if (symbol.kind == GrammarSymbol::Kind::kLanguage) {
    place.within = readers_[static_cast<std::size_t>(symbol.index)]->start();
    if (place.within != ByteReader::kDead) CloseLanguage(place);
    return;
  }
  const bool is_last = static_cast<std::size_t>(place.index) + 1 == SequenceAt(place).size();
  std::int32_t parent = place.parent;
  if (!is_last) {
    ++place.index;
    parent = PlaceId(place);
  }
  CloseRule(symbol.index, parent);
}

void GrammarAutomaton::CloseLanguage(Place place) {
  found_.push_back(PlaceId(place));
  ByteReader& reader = *readers_[static_cast<std::size_t>(SymbolAt(place).index)];
  full_ = full_ || reader.full() || found_.size() > kMaxPlaces;
  if (!reader.Accepts(place.within)) return;
  ++place.index;
  place.within = 0;
  Close(place);
}

void GrammarAutomaton::CloseRule(std::int32_t rule, std::int32_t parent) {
  if (full_ || !seen_.try_emplace({rule, parent}, true).second) return;
  // This bounds the depth of the recursion, too.
  full_ = seen_.size() > kMaxRules || found_.size() > kMaxPlaces;
  const auto count = grammar_->rules[static_cast<std::size_t>(rule)].size();
  for (std::size_t i = 0; i < count; ++i) Close({rule, static_cast<std::int32_t>(i), 0, parent});
}

GrammarAutomaton::State GrammarAutomaton::Found() {
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  seen_.clear();
  const bool accepts = std::exchange(found_end_, false);
  std::vector<std::int32_t> places = std::exchange(found_, {});
  if (full_ || (places.empty() && !accepts)) return kDead;
  const auto known = state_ids_.find({accepts, places});
  if (known != state_ids_.end()) return known->second;
  if (states_.size() >= kMaxStates) {
    full_ = true;
    return kDead;
  }
  const auto state = static_cast<State>(states_.size());
  state_ids_.emplace(std::pair(accepts, places), state);
  states_.push_back({.places = std::move(places), .accepts = accepts});
  return state;
}

std::int32_t GrammarAutomaton::MovePlace(const std::vector<Place>& old, std::int32_t place) {
  std::vector<std::int32_t> chain;  // up to the beginning
  for (; place != kEnd; place = old[static_cast<std::size_t>(place)].parent) chain.push_back(place);
  std::int32_t moved = kEnd;
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    Place copy = old[static_cast<std::size_t>(*at)];
    copy.parent = moved;
    moved = PlaceId(copy);
  }
  return moved;
}

GrammarAutomaton::State GrammarAutomaton::ForgetAllBut(State state) {
  full_ = false;
  start_ = kDead;
  StateData kept;
  if (state != kDead) kept = std::move(states_[static_cast<std::size_t>(state)]);
  const std::vector<Place> old = std::exchange(places_, {});
  place_ids_.clear();
  state_ids_.clear();
  states_.clear();
  if (state == kDead) return kDead;
  kept.next.reset();
  for (std::int32_t& place : kept.places) place = MovePlace(old, place);
  std::sort(kept.places.begin(), kept.places.end());
  state_ids_.emplace(std::pair(kept.accepts, kept.places), 0);
  states_.push_back(std::move(kept));
  return 0;
}

// A language may be at its only end, which no byte shows.
bool GrammarAutomaton::IsEnd(State state) {
  const auto at = static_cast<std::size_t>(state);
  if (states_[at].places.empty() || !states_[at].accepts) return states_[at].places.empty();
  if (states_[at].is_end < 0) {
    bool continues = false;
    for (int byte = 0; byte < 256 && !continues; ++byte) {
      continues = Next(state, static_cast<unsigned char>(byte)) != kDead;
    }
    states_[at].is_end = continues || full_ ? 0 : 1;
  }
  return states_[at].is_end != 0;
}

GrammarAutomaton::State GrammarAutomaton::Next(State state, unsigned char byte) {
  if (state == kDead) return kDead;
  const auto at = static_cast<std::size_t>(state);
  if (states_[at].next == nullptr) {
    states_[at].next = std::make_unique<std::array<State, 256>>();
    states_[at].next->fill(kUnknown);
  }
  State next = (*states_[at].next)[byte];
  if (next != kUnknown) return next;
  for (std::size_t i = 0; i < states_[at].places.size(); ++i) {
    Place place = places_[static_cast<std::size_t>(states_[at].places[i])];
    const GrammarSymbol symbol = SymbolAt(place);
    if (symbol.kind == GrammarSymbol::Kind::kLanguage) {
      ByteReader& reader = *readers_[static_cast<std::size_t>(symbol.index)];
      place.within = reader.Next(place.within, byte);
      full_ = full_ || reader.full();
      if (place.within != ByteReader::kDead) CloseLanguage(place);
    } else if (grammar_->sets[static_cast<std::size_t>(symbol.index)][byte]) {
      ++place.index;
      Close(place);
    }
  }
  next = Found();
  if (!full_) (*states_[at].next)[byte] = next;
  return next;
}

}  // namespace kvcache
