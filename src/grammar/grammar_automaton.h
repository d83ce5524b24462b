// Reads a text byte by byte and knows whether a grammar may continue with it.
//
// A state is the set of all places in the grammar where the text may be. States are numbered as they are
// found, and each remembers its successors, so a known step is one look-up.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace kvcache {

class GrammarAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;
  // Beyond so many states, places in a state, or rules that follow from one byte, every step is dead, and
  // full() is true.
  static constexpr std::size_t kMaxStates = 32'768;
  static constexpr std::size_t kMaxPlaces = 2'048;
  static constexpr std::size_t kMaxRules = 8'192;

  explicit GrammarAutomaton(std::shared_ptr<const Grammar> grammar);
  explicit GrammarAutomaton(Grammar grammar)
      : GrammarAutomaton(std::make_shared<const Grammar>(std::move(grammar))) {}

  State start() const { return start_; }
  State Next(State state, unsigned char byte);
  // Returns whether the text may end here.
  bool Accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  // Returns whether the text must end here.
  bool IsEnd(State state);
  bool full() const { return full_; }
  std::size_t size() const { return states_.size(); }  // states that are known

  // Forgets all states but this one, so that a long text takes no more memory than a short one. Returns its
  // new number; all others are invalid, start() too.
  State ForgetAllBut(State state);

 private:
  static constexpr State kUnknown = -2;
  static constexpr std::int32_t kEnd = -1;

  // A place in front of a symbol, or within one, and the place where its rule continues.
  struct Place {
    std::int32_t rule = 0;
    std::int32_t alternative = 0;
    std::int32_t index = 0;
    std::int32_t parent = kEnd;
    std::int32_t within = 0;  // the state of the symbol's language
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct StateData {
    std::vector<std::int32_t> places{};  // ascending; each is in front of bytes
    bool accepts = false;
    std::int8_t is_end = -1;  // -1: not known
    std::unique_ptr<std::array<State, 256>> next{};
  };

  const GrammarSequence& SequenceAt(const Place& place) const;
  GrammarSymbol SymbolAt(const Place& place) const {
    return SequenceAt(place)[static_cast<std::size_t>(place.index)];
  }
  std::int32_t PlaceId(const Place& place);
  // Puts a place of `old`, and those where its rules continue, into the places again.
  std::int32_t MovePlace(const std::vector<Place>& old, std::int32_t place);
  // Adds all places in front of bytes that follow from this one to `found_`.
  void Close(Place place);
  void CloseRule(std::int32_t rule, std::int32_t parent);
  // Adds a place within a language, and those behind it if the language may end.
  void CloseLanguage(Place place);
  // Returns the state of `found_`.
  State Found();

  std::shared_ptr<const Grammar> grammar_;
  std::vector<std::unique_ptr<ByteReader>> readers_;  // by language
  std::vector<Place> places_;
  std::map<Place, std::int32_t> place_ids_;
  std::vector<StateData> states_;
  std::map<std::pair<bool, std::vector<std::int32_t>>, State> state_ids_;
  std::vector<std::int32_t> found_;                             // scratch: places
  std::map<std::pair<std::int32_t, std::int32_t>, bool> seen_;  // scratch: rules and their parents
  bool found_end_ = false;
  bool full_ = false;
  State start_ = kDead;
};

}  // namespace kvcache
