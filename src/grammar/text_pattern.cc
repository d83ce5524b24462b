#include "grammar/text_pattern.h"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr int kMostDepth = 50;
constexpr std::int64_t kMostRepeats = 10'000;

// The characters of one place: of ASCII, and perhaps all others.
struct CharacterSet {
  std::bitset<128> ascii{};
  bool wide = false;
};

constexpr std::int64_t kMostLength = 1'000'000;  // longer texts are not told apart

TextLengths operator+(TextLengths a, TextLengths b) {
  return {std::min(a.least + b.least, kMostLength),
          a.most < 0 || b.most < 0 ? -1 : std::min(a.most + b.most, kMostLength)};
}
TextLengths Either(TextLengths a, TextLengths b) {
  return {std::min(a.least, b.least), a.most < 0 || b.most < 0 ? -1 : std::max(a.most, b.most)};
}
TextLengths Times(TextLengths one, TextLengths count) {
  const bool endless = count.most < 0 || one.most < 0;
  return {std::min(one.least * count.least, kMostLength),
          endless ? -1 : std::min(one.most * count.most, kMostLength)};
}

class PatternParser {
 public:
  PatternParser(std::string_view pattern, TextLengths lengths, GrammarBuilder& builder,
                JsonGrammar& json)
      : pattern_(pattern), wanted_(lengths), builder_(builder), json_(json) {}

  Result<GrammarSequence> Parse() {
    const bool from_start = TakeIf('^');
    const bool to_end = pattern_.ends_with('$') && !pattern_.ends_with("\\$");
    if (to_end) pattern_.remove_suffix(1);
    KVCACHE_ASSIGN_OR_RETURN(const Part whole, Alternatives(0));
    GrammarSequence body = {whole.symbol};
    if (at_ < pattern_.size()) return Fail("has a ')' without a '('");
    if (has_branches_ && (from_start || to_end)) {
      return Fail("has '|' beside '^' or '$': put the alternatives into a group");
    }
    const bool anchored = from_start && to_end;
    if (!IsWithin({whole.lengths.least, anchored ? whole.lengths.most : -1})) {
      if (!anchored || !repeated_) return Fail("does not bound the lengths of its texts");
      KVCACHE_ASSIGN_OR_RETURN(body, Cut());
    }
    const GrammarSequence any = builder_.Repeat(json_.Character(), 0, -1);
    GrammarSequence text = builder_.Literal("\"");
    if (!from_start) text = Joined(std::move(text), any);
    text = Joined(std::move(text), body);
    if (!to_end) text = Joined(std::move(text), any);
    return Joined(std::move(text), builder_.Literal("\""));
  }

 private:
  // A symbol and the lengths of its texts.
  struct Part {
    GrammarSymbol symbol{};
    TextLengths lengths{};
  };
  struct Repetition {
    GrammarSymbol character{};
    TextLengths count{};
  };

  bool IsWithin(TextLengths own) const {
    const bool most = wanted_.most < 0 || (own.most >= 0 && own.most <= wanted_.most);
    return most && own.least >= wanted_.least;
  }

  // Returns the repetition with the lengths that are wanted.
  Result<GrammarSequence> Cut() const {
    const TextLengths count = repeated_->count;
    const std::int64_t least = std::max(count.least, wanted_.least);
    const std::int64_t most = count.most < 0 || wanted_.most < 0
                                  ? std::max(count.most, wanted_.most)
                                  : std::min(count.most, wanted_.most);
    if (most >= 0 && most < least) return Fail("has no text of the lengths beside it");
    return builder_.Repeat(repeated_->character, least, most);
  }

  Status Fail(const char* problem) const {
    return InvalidArgument(StrCat(problem, " (at character ", at_, ")"));
  }
  bool TakeIf(char c) {
    if (at_ >= pattern_.size() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }

  Result<Part> Alternatives(int depth) {
    if (depth > kMostDepth) return Fail("has groups that are too deep");
    const GrammarSymbol rule = builder_.NewRule();
    std::optional<TextLengths> lengths;
    do {
      TextLengths own{0, 0};
      KVCACHE_ASSIGN_OR_RETURN(GrammarSequence sequence, Sequence(depth, own));
      builder_.Add(rule, std::move(sequence));
      lengths = lengths ? Either(*lengths, own) : own;
      if (at_ < pattern_.size() && pattern_[at_] == '|' && depth == 0) has_branches_ = true;
    } while (TakeIf('|'));
    return Part{rule, *lengths};
  }

  // Adds the lengths of its texts to `lengths`.
  Result<GrammarSequence> Sequence(int depth, TextLengths& lengths) {
    GrammarSequence sequence;
    std::optional<Repetition> alone;
    for (const std::size_t begin = at_;
         at_ < pattern_.size() && pattern_[at_] != '|' && pattern_[at_] != ')';) {
      const bool may_be_alone = at_ == begin && pattern_[at_] != '(';
      KVCACHE_ASSIGN_OR_RETURN(const Part atom, Atom(depth));
      KVCACHE_ASSIGN_OR_RETURN(const TextLengths count, ReadRepetition());
      const bool once = count.least == 1 && count.most == 1;
      sequence =
          Joined(std::move(sequence), once ? GrammarSequence{atom.symbol}
                                           : builder_.Repeat(atom.symbol, count.least, count.most));
      lengths = lengths + Times(atom.lengths, count);
      alone.reset();
      if (may_be_alone) alone = Repetition{atom.symbol, count};
    }
    if (depth == 0) repeated_ = alone;
    return sequence;
  }

  // Returns how often an atom occurs.
  Result<TextLengths> ReadRepetition() {
    TextLengths count{1, 1};
    if (TakeIf('*')) {
      count = {0, -1};
    } else if (TakeIf('+')) {
      count.most = -1;
    } else if (TakeIf('?')) {
      count.least = 0;
    } else if (TakeIf('{')) {
      KVCACHE_RETURN_IF_ERROR(ReadCount(count.least));
      count.most = count.least;
      if (TakeIf(',')) {
        count.most = -1;
        if (at_ < pattern_.size() && pattern_[at_] != '}') {
          KVCACHE_RETURN_IF_ERROR(ReadCount(count.most));
        }
      }
      if (!TakeIf('}')) return Fail("has a '{' without counts and a '}'");
      if (count.most >= 0 && count.most < count.least) return Fail("has counts in the wrong order");
    } else {
      return count;
    }
    TakeIf('?');  // lazy: the same texts
    if (at_ < pattern_.size() && (pattern_[at_] == '*' || pattern_[at_] == '+')) {
      return Fail("repeats a repetition");
    }
    return count;
  }

  Status ReadCount(std::int64_t& count) {
    const char* const end = pattern_.data() + pattern_.size();
    const auto read = std::from_chars(pattern_.data() + at_, end, count);
    if (read.ec != std::errc() || count < 0) return Fail("has a '{' without counts and a '}'");
    if (count > kMostRepeats) return Fail("repeats more than 10,000 times");
    at_ = static_cast<std::size_t>(read.ptr - pattern_.data());
    return Status::Ok();
  }

  Result<Part> Atom(int depth) {
    const char c = pattern_[at_];
    if (c == '(') {
      ++at_;
      if (TakeIf('?') && !TakeIf(':')) return Fail("has a group of a kind that is not supported");
      KVCACHE_ASSIGN_OR_RETURN(const Part group, Alternatives(depth + 1));
      if (!TakeIf(')')) return Fail("has a '(' without a ')'");
      return group;
    }
    if (c == '*' || c == '+' || c == '?' || c == '{') return Fail("repeats nothing");
    if (c == '^' || c == '$') return Fail("has '^' or '$' inside");
    CharacterSet set;
    if (c == '[') {
      KVCACHE_RETURN_IF_ERROR(ReadClass(set));
    } else if (c == '.') {
      ++at_;
      set.ascii.set();
      set.wide = true;
    } else if (c == '\\') {
      KVCACHE_RETURN_IF_ERROR(ReadEscape(set));
    } else if (static_cast<unsigned char>(c) < 0x80) {
      ++at_;
      set.ascii.set(static_cast<std::size_t>(c));
    } else {
      return Part{WideLiteral(), kOne};
    }
    return Part{SymbolOf(set), kOne};
  }

  // A character of several bytes, as it is.
  GrammarSymbol WideLiteral() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && (static_cast<unsigned char>(pattern_[end]) & 0xC0) == 0x80)
      ++end;
    const GrammarSymbol rule = builder_.AnyOf({builder_.Literal(pattern_.substr(at_, end - at_))});
    at_ = end;
    return rule;
  }

  static void AddRange(CharacterSet& set, char first, char last) {
    for (std::size_t c = static_cast<unsigned char>(first); c <= static_cast<unsigned char>(last);
         ++c) {
      set.ascii.set(c);
    }
  }

  // Adds what a letter after a backslash stands for.
  Status ReadEscape(CharacterSet& set) {
    if (++at_ >= pattern_.size()) return Fail("ends with a backslash");
    const char c = pattern_[at_++];
    CharacterSet own;
    switch (c) {
      case 'd':
      case 'D': AddRange(own, '0', '9'); break;
      case 'w':
      case 'W':
        AddRange(own, '0', '9');
        AddRange(own, 'a', 'z');
        AddRange(own, 'A', 'Z');
        own.ascii.set('_');
        break;
      case 's':
      case 'S': own.ascii.set(' '); break;
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            static_cast<unsigned char>(c) >= 0x80) {
          return Fail("has an escape that is not supported");
        }
        own.ascii.set(static_cast<std::size_t>(c));
    }
    if (c == 'D' || c == 'W' || c == 'S') {
      own.ascii.flip();
      // Other white space is none of \S.
      own.wide = c != 'S';
    }
    set.ascii |= own.ascii;
    set.wide = set.wide || own.wide;
    return Status::Ok();
  }

  Status ReadClass(CharacterSet& set) {
    ++at_;
    const bool negated = TakeIf('^');
    bool first = true;
    while (at_ < pattern_.size() && (pattern_[at_] != ']' || first)) {
      first = false;
      const char c = pattern_[at_];
      if (static_cast<unsigned char>(c) >= 0x80) {
        return Fail("has a class with characters beyond ASCII");
      }
      if (c == '\\') {
        const char letter = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : ' ';
        if (negated && (letter == 's' || letter == 'S')) {
          return Fail("has a negated class with white space, which is not supported");
        }
        KVCACHE_RETURN_IF_ERROR(ReadEscape(set));
        continue;
      }
      ++at_;
      const bool range =
          at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']';
      if (!range) {
        set.ascii.set(static_cast<std::size_t>(c));
        continue;
      }
      const char last = pattern_[at_ + 1];
      if (last == '\\' || static_cast<unsigned char>(last) >= 0x80 || last < c) {
        return Fail("has a range that is not supported");
      }
      AddRange(set, c, last);
      at_ += 2;
    }
    if (!TakeIf(']')) return Fail("has a '[' without a ']'");
    if (negated) {
      set.ascii.flip();
      set.wide = !set.wide;
    }
    return Status::Ok();
  }

  GrammarSymbol SymbolOf(const CharacterSet& set) {
    ByteSet plain;
    std::vector<GrammarSequence> alternatives;
    for (std::size_t c = 0x20; c < 0x7F; ++c) {
      if (!set.ascii[c]) continue;
      if (c == '"' || c == '\\') {
        alternatives.push_back(builder_.Literal(c == '"' ? "\\\"" : "\\\\"));
      } else {
        plain.set(c);
      }
    }
    if (plain.any()) alternatives.push_back({builder_.Bytes(plain)});
    if (set.wide) alternatives.push_back({json_.WideCharacter()});
    return builder_.AnyOf(std::move(alternatives));
  }

  static constexpr TextLengths kOne{1, 1};

  std::string_view pattern_;
  const TextLengths wanted_;
  GrammarBuilder& builder_;
  JsonGrammar& json_;
  std::size_t at_ = 0;
  bool has_branches_ = false;  // outside of groups
  std::optional<Repetition>
      repeated_{};  // the whole pattern, if it is one character that is repeated
};

}  // namespace

Result<GrammarSequence> TextPattern(std::string_view pattern, TextLengths lengths,
                                    GrammarBuilder& builder, JsonGrammar& json) {
  return PatternParser(pattern, lengths, builder, json).Parse();
}

}  // namespace kvcache
