#include "grammar/text/text_language.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "grammar/text/character_automaton.h"

namespace kvcache {
namespace {

constexpr std::uint32_t kFirstSurrogate = 0xD800;
constexpr std::uint32_t kFirstLowSurrogate = 0xDC00;
constexpr std::uint32_t kLastSurrogate = 0xDFFF;
constexpr std::uint32_t kFirstWide = 0x10000;

// Returns the character that a letter behind a backslash stands for.
std::uint32_t ShortEscape(unsigned char byte) {
  switch (byte) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return byte;  // '"', '\\', '/'
  }
}
constexpr unsigned char kShortEscapes[] = {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'};

std::int32_t HexDigit(unsigned char byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

// Bytes within a character are states of their own: what they leave open is a range of code points.
class TextReader final : public ByteReader {
 public:
  explicit TextReader(const TextLanguage& language)
      : classes_(language.classes()), characters_(language) {}

  State start() override {
    const State begin = characters_.start();
    return begin == CharacterAutomaton::kDead ? kDead : StateOf({begin});
  }
  bool Accepts(State state) override {
    const Key key = states_[static_cast<std::size_t>(state)];
    return key.within == Within::kNothing && characters_.Accepts(key.at);
  }
  bool full() const override { return full_ || characters_.full(); }
  std::size_t work() const override { return states_.size() + characters_.work(); }

  State Next(State state, unsigned char byte) override {
    const Key key = states_[static_cast<std::size_t>(state)];
    switch (key.within) {
      case Within::kNothing: return First(key, byte);
      case Within::kTail: return Tail(key, byte);
      case Within::kUtf8: return Utf8(key, byte);
      case Within::kBackslash: return Escape(key, byte);
      case Within::kHex: return Hex(key, byte);
      case Within::kHigh: return byte == '\\' ? StateOf(With(key, Within::kHighBackslash)) : kDead;
      case Within::kHighBackslash: return byte == 'u' ? StateOf(With(key, Within::kLowHex)) : kDead;
      case Within::kLowHex: return LowHex(key, byte);
    }
    return kDead;
  }

 private:
  static constexpr std::size_t kMaxStates = 500'000;
  enum class Within : std::uint8_t {
    kNothing,        // between characters
    kTail,           // `left` more bytes of UTF-8, whatever they are; then the state is `at`
    kUtf8,           // `left` more bytes behind the bits `value`
    kBackslash,      // behind a backslash
    kHex,            // `left` more digits of \uXXXX behind `value`
    kHigh,           // behind the high surrogate `value`
    kHighBackslash,  // and a backslash
    kLowHex,         // `left` more digits of a low surrogate; `value`: the high one, and digits
  };
  struct Key {
    std::int32_t at = 0;
    Within within = Within::kNothing;
    std::int32_t left = 0;
    std::uint32_t value = 0;
    std::uint32_t min = 0;  // kUtf8: smaller code points are overlong
    auto operator<=>(const Key&) const = default;
  };

  static Key With(Key key, Within within) {
    key.within = within;
    if (within == Within::kLowHex) {
      key.left = 4;
      key.value <<= 16;
    }
    return key;
  }

  State StateOf(const Key& key) {
    const auto [known, is_new] = ids_.try_emplace(key, static_cast<State>(states_.size()));
    if (!is_new) return known->second;
    if (states_.size() >= kMaxStates) {
      full_ = true;
      return kDead;
    }
    states_.push_back(key);
    return known->second;
  }

  State Behind(const Key& key, std::uint32_t point) {
    const auto next = characters_.Next(key.at, classes_.ClassOf(point));
    return next == CharacterAutomaton::kDead ? kDead : StateOf({next});
  }

  // Returns the states behind all characters of a range: one of them, and whether there are others.
  struct Targets {
    CharacterAutomaton::State one = CharacterAutomaton::kDead;
    bool same = true;
  };
  // `all`: looks at each; else stops at the first that is not dead.
  Targets Behind(const Key& key, std::uint32_t first, std::uint32_t last, bool all) {
    Targets targets;
    const auto& intervals = classes_.intervals();
    std::size_t at = classes_.IntervalOf(first);
    targets.one = characters_.Next(key.at, intervals[at].of_class);
    for (++at; at < intervals.size() && intervals[at].first <= last; ++at) {
      if (targets.one != CharacterAutomaton::kDead && (!all || !targets.same)) return targets;
      const auto next = characters_.Next(key.at, intervals[at].of_class);
      if (next == targets.one) continue;
      targets.same = false;
      if (next != CharacterAutomaton::kDead) targets.one = next;
    }
    return targets;
  }
  bool AnyBehind(const Key& key, std::uint32_t first, std::uint32_t last) {
    return first <= last &&
           Behind(key, first, last, /*all=*/false).one != CharacterAutomaton::kDead;
  }

  State First(const Key& key, unsigned char byte) {
    if (byte == '\\') {
      const Key next{key.at, Within::kBackslash};
      return AnyEscape(key) ? StateOf(next) : kDead;
    }
    if (byte < 0x20 || byte == '"') return kDead;
    if (byte < 0x80) return Behind(key, byte);
    Key next{key.at, Within::kUtf8};
    if (byte >= 0xC2 && byte <= 0xDF) {
      next.left = 1, next.value = byte & 0x1Fu, next.min = 0x80;
    } else if (byte >= 0xE0 && byte <= 0xEF) {
      next.left = 2, next.value = byte & 0x0Fu, next.min = 0x800;
    } else if (byte >= 0xF0 && byte <= 0xF4) {
      next.left = 3, next.value = byte & 0x07u, next.min = kFirstWide;
    } else {
      return kDead;
    }
    return Utf8State(next);
  }

  State Utf8(Key key, unsigned char byte) {
    if ((byte & 0xC0) != 0x80) return kDead;
    key.value = key.value << 6 | (byte & 0x3Fu);
    --key.left;
    if (key.left > 0) return Utf8State(key);
    const bool is_surrogate = key.value >= kFirstSurrogate && key.value <= kLastSurrogate;
    if (key.value < key.min || key.value > kLastCodePoint || is_surrogate) return kDead;
    return Behind(key, key.value);
  }

  State Tail(Key key, unsigned char byte) {
    if ((byte & 0xC0) != 0x80) return kDead;
    if (--key.left > 0) return StateOf(key);
    return StateOf({key.at});
  }

  // Beginnings of characters that all lead to one state are one state.
  State Utf8State(const Key& key) {
    const unsigned shift = 6u * static_cast<unsigned>(key.left);
    const std::uint32_t first = key.value << shift;
    const std::uint32_t last = first | ((1u << shift) - 1);
    const bool whole = first >= key.min && last <= kLastCodePoint &&
                       (last < kFirstSurrogate || first > kLastSurrogate);
    if (whole) {
      const Targets targets = Behind(key, first, last, /*all=*/true);
      if (targets.one == CharacterAutomaton::kDead) return kDead;
      return StateOf(targets.same ? Key{targets.one, Within::kTail, key.left} : key);
    }
    const std::uint32_t from = std::max(first, key.min);
    const std::uint32_t to = std::min(last, kLastCodePoint);
    const bool any = AnyBehind(key, from, std::min(to, kFirstSurrogate - 1)) ||
                     AnyBehind(key, std::max(from, kLastSurrogate + 1), to);
    return any ? StateOf(key) : kDead;
  }

  bool AnyEscape(const Key& key) { return AnyBehindHex(key, 0, 0xFFFF); }
  // Returns whether a character can be written as \u with a number of this range, and a low surrogate.
  bool AnyBehindHex(const Key& key, std::uint32_t first, std::uint32_t last) {
    if (AnyBehind(key, first, std::min(last, kFirstSurrogate - 1)) ||
        AnyBehind(key, std::max(first, kLastSurrogate + 1), last)) {
      return true;
    }
    const std::uint32_t high = std::max(first, kFirstSurrogate);
    const std::uint32_t last_high = std::min(last, kFirstLowSurrogate - 1);
    return high <= last_high && AnyBehind(key, Wide(high, 0), Wide(last_high, 0x3FF));
  }
  static std::uint32_t Wide(std::uint32_t high, std::uint32_t low) {
    return kFirstWide + ((high - kFirstSurrogate) << 10) + low;
  }

  State Escape(const Key& key, unsigned char byte) {
    if (byte == 'u') {
      const Key next{key.at, Within::kHex, 4};
      return AnyBehindHex(key, 0, 0xFFFF) ? StateOf(next) : kDead;
    }
    const bool known = std::find(std::begin(kShortEscapes), std::end(kShortEscapes), byte) !=
                       std::end(kShortEscapes);
    return known ? Behind(key, ShortEscape(byte)) : kDead;
  }

  State Hex(Key key, unsigned char byte) {
    const std::int32_t digit = HexDigit(byte);
    if (digit < 0) return kDead;
    key.value = key.value << 4 | static_cast<std::uint32_t>(digit);
    --key.left;
    const unsigned shift = 4u * static_cast<unsigned>(key.left);
    const std::uint32_t first = key.value << shift;
    if (!AnyBehindHex(key, first, first | ((1u << shift) - 1))) return kDead;
    if (key.left > 0) return StateOf(key);
    const bool is_high = key.value >= kFirstSurrogate && key.value < kFirstLowSurrogate;
    return is_high ? StateOf(With(key, Within::kHigh)) : Behind(key, key.value);
  }

  State LowHex(Key key, unsigned char byte) {
    const std::int32_t digit = HexDigit(byte);
    if (digit < 0) return kDead;
    const std::uint32_t high = key.value >> 16;
    const std::uint32_t low = (key.value & 0xFFFF) << 4 | static_cast<std::uint32_t>(digit);
    --key.left;
    const unsigned shift = 4u * static_cast<unsigned>(key.left);
    const std::uint32_t first = std::max(low << shift, kFirstLowSurrogate);
    const std::uint32_t last = std::min(low << shift | ((1u << shift) - 1), kLastSurrogate);
    if (first > last) return kDead;
    const std::uint32_t from = Wide(high, first - kFirstLowSurrogate);
    if (!AnyBehind(key, from, Wide(high, last - kFirstLowSurrogate))) return kDead;
    key.value = high << 16 | low;
    return key.left > 0 ? StateOf(key) : Behind(key, from);
  }

  const CharacterClasses& classes_;
  CharacterAutomaton characters_;
  std::vector<Key> states_;
  std::map<Key, State> ids_;
  bool full_ = false;
};

std::vector<const CodePointSet*> SetsOf(const std::vector<TextLanguage::Part>& parts) {
  static const CodePointSet kWords = WordCharacters();
  std::vector<const CodePointSet*> sets;
  for (const TextLanguage::Part& part : parts) {
    for (const CodePointSet& set : part.program->sets) sets.push_back(&set);
    if (part.program->has_boundaries) sets.push_back(&kWords);
  }
  return sets;
}

}  // namespace

TextLanguage::TextLanguage(std::vector<Part> parts, TextLengths lengths)
    : parts_(std::move(parts)), lengths_(lengths), classes_(SetsOf(parts_)) {}

std::unique_ptr<ByteReader> TextLanguage::Reader() const {
  return std::make_unique<TextReader>(*this);
}

std::optional<bool> TextLanguage::Has(std::string_view text, std::size_t& work) const {
  CharacterAutomaton automaton(*this);
  CharacterAutomaton::State state = automaton.start();
  for (const std::uint32_t point : CodePointsOf(text)) {
    if (state == CharacterAutomaton::kDead) break;
    state = automaton.Next(state, classes_.ClassOf(point));
  }
  const bool has = automaton.Accepts(state);
  work += automaton.work();
  return automaton.full() ? std::nullopt : std::optional(has);
}

}  // namespace kvcache
