#include "grammar/text/pattern_syntax.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/text/unicode_property.h"

namespace kvcache {
namespace {

constexpr int kMaxGroupDepth = 50;
constexpr std::int64_t kMaxRepeats = 10'000;

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : points_(CodePointsOf(pattern)) {}

  Result<PatternTree> Parse() {
    KVCACHE_ASSIGN_OR_RETURN(tree_.root, Alternatives(0));
    if (at_ < points_.size()) return Fail("has a ')' without a '('");
    return std::move(tree_);
  }

 private:
  using Node = PatternTree::Node;

  Status Fail(std::string_view problem) const {
    return InvalidArgument(StrCat(problem, " (at character ", at_, ")"));
  }
  bool Is(char32_t c) const { return at_ < points_.size() && points_[at_] == c; }
  bool TakeIf(char32_t c) {
    if (!Is(c)) return false;
    ++at_;
    return true;
  }
  bool TakeIf(std::u32string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (at_ + i >= points_.size() || points_[at_ + i] != text[i]) return false;
    }
    at_ += text.size();
    return true;
  }

  Result<std::int32_t> Alternatives(int depth) {
    if (depth > kMaxGroupDepth) return Fail("has groups that are too deep");
    Node node{.kind = PatternKind::kAlternatives};
    do {
      KVCACHE_ASSIGN_OR_RETURN(const std::int32_t sequence, Sequence(depth));
      node.children.push_back(sequence);
    } while (TakeIf('|'));
    return node.children.size() == 1 ? node.children[0] : tree_.AddNode(std::move(node));
  }

  Result<std::int32_t> Sequence(int depth) {
    Node node;
    while (at_ < points_.size() && !Is('|') && !Is(')')) {
      KVCACHE_ASSIGN_OR_RETURN(const std::int32_t term, Term(depth));
      if (!IsEmpty(term)) node.children.push_back(term);
      if (IsTooLarge()) break;
    }
    if (IsTooLarge()) return Fail(StrCat("has more than ", PatternTree::kMaxNodes, " parts"));
    return node.children.size() == 1 ? node.children[0] : tree_.AddNode(std::move(node));
  }

  bool IsTooLarge() const { return tree_.nodes.size() > PatternTree::kMaxNodes; }
  bool IsEmpty(std::int32_t index) const {
    const Node& node = tree_.nodes[static_cast<std::size_t>(index)];
    return node.kind == PatternKind::kSequence && node.children.empty();
  }

  Result<std::int32_t> Term(int depth) {
    if (TakeIf('^')) return tree_.AddNode({.kind = PatternKind::kBegin});
    if (TakeIf('$')) return tree_.AddNode({.kind = PatternKind::kEnd});
    if (TakeIf(U"\\b")) return tree_.AddNode({.kind = PatternKind::kBoundary});
    if (TakeIf(U"\\B")) return tree_.AddNode({.kind = PatternKind::kNoBoundary});
    if (TakeIf(U"(?=")) return Group(PatternKind::kLookahead, depth);
    if (TakeIf(U"(?!")) return Group(PatternKind::kNoLookahead, depth);
    KVCACHE_ASSIGN_OR_RETURN(const std::int32_t atom, Atom(depth));
    return Repeated(atom);
  }

  Result<std::int32_t> Group(PatternKind kind, int depth) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int32_t inner, Alternatives(depth + 1));
    if (!TakeIf(')')) return Fail("has a '(' without a ')'");
    if (kind == PatternKind::kSequence) return inner;
    return tree_.AddNode({.kind = kind, .children = {inner}});
  }

  Result<std::int32_t> Atom(int depth) {
    if (TakeIf(U"(?<=") || TakeIf(U"(?<!")) {
      return Fail("has a look back '(?<…', which is not supported");
    }
    if (TakeIf(U"(?<")) {
      while (at_ < points_.size() && !Is('>')) ++at_;
      if (!TakeIf('>')) return Fail("has a '(?<' without a '>'");
      return Group(PatternKind::kSequence, depth);
    }
    if (TakeIf(U"(?:")) return Group(PatternKind::kSequence, depth);
    if (TakeIf(U"(?")) return Fail("has a group '(?…' that ECMA-262 does not know");
    if (TakeIf('(')) return Group(PatternKind::kSequence, depth);
    if (Is('*') || Is('+') || Is('?') || Is('{')) return Fail("repeats nothing");
    CodePointSet set;
    if (TakeIf('[')) {
      KVCACHE_ASSIGN_OR_RETURN(set, Class());
    } else if (TakeIf('.')) {
      set = LineTerminators().Complement();
    } else {
      KVCACHE_ASSIGN_OR_RETURN(set, Character(/*in_class=*/false));
    }
    return tree_.AddNode({.kind = PatternKind::kSet, .set = tree_.AddSet(set)});
  }

  Result<std::int32_t> Repeated(std::int32_t atom) {
    std::int64_t min = 0;
    std::int64_t max = PatternTree::kEndless;
    if (TakeIf('*')) {
    } else if (TakeIf('+')) {
      min = 1;
    } else if (TakeIf('?')) {
      max = 1;
    } else if (TakeIf('{')) {
      KVCACHE_ASSIGN_OR_RETURN(min, Count());
      max = min;
      if (TakeIf(',')) {
        max = PatternTree::kEndless;
        if (!Is('}')) {
          KVCACHE_ASSIGN_OR_RETURN(max, Count());
        }
      }
      if (!TakeIf('}')) return Fail("has a '{' without counts and a '}'");
      if (max >= 0 && max < min) return Fail("has counts in the wrong order");
    } else {
      return atom;
    }
    TakeIf('?');  // lazy: the same texts
    if (Is('*') || Is('+') || Is('?') || Is('{')) return Fail("repeats a repetition");
    if (max == 0) return tree_.AddNode({});
    return IsEmpty(atom) ? atom : tree_.AddNode(Merged(atom, min, max));
  }

  // (x{a,b}){c,d} is x{ac,bd} if no count between these is left out.
  Node Merged(std::int32_t atom, std::int64_t min, std::int64_t max) const {
    const Node& inner = tree_.nodes[static_cast<std::size_t>(atom)];
    Node node{.kind = PatternKind::kRepeat, .set = 0, .min = min, .max = max, .children = {atom}};
    if (inner.kind != PatternKind::kRepeat) return node;
    const bool is_endless = inner.max < 0;
    const bool whole =
        min == max || (is_endless && min > 0 ? true : min * inner.max + 1 >= (min + 1) * inner.min);
    if (!whole || (is_endless && min == 0 && inner.min > 1)) return node;
    const std::int64_t all_min = min * inner.min;
    const std::int64_t all_max = is_endless || max < 0 ? PatternTree::kEndless : max * inner.max;
    if (all_min > kMaxMerged || all_max > kMaxMerged) return node;
    node.min = all_min;
    node.max = all_max;
    node.children = inner.children;
    return node;
  }

  Result<std::int64_t> Count() {
    std::int64_t count = 0;
    const std::size_t begin = at_;
    for (; at_ < points_.size() && points_[at_] >= '0' && points_[at_] <= '9'; ++at_) {
      count = count * 10 + (points_[at_] - '0');
      if (count > kMaxRepeats) return Fail("repeats more than 10,000 times");
    }
    if (at_ == begin) return Fail("has a '{' without counts and a '}'");
    return count;
  }

  Result<CodePointSet> Class() {
    const bool negated = TakeIf('^');
    std::vector<CodePointRange> ranges;
    while (at_ < points_.size() && !Is(']')) {
      KVCACHE_ASSIGN_OR_RETURN(const CodePointSet first, Character(/*in_class=*/true));
      const bool is_range = Is('-') && at_ + 1 < points_.size() && points_[at_ + 1] != ']';
      if (!is_range) {
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
        continue;
      }
      ++at_;
      KVCACHE_ASSIGN_OR_RETURN(const CodePointSet last, Character(/*in_class=*/true));
      const auto begin = OnlyPointOf(first);
      const auto end = OnlyPointOf(last);
      if (!begin || !end) return Fail("has a range of a class that ends with a class");
      if (*begin > *end) return Fail("has a range in the wrong order");
      ranges.push_back({*begin, *end});
    }
    if (!TakeIf(']')) return Fail("has a '[' without a ']'");
    const CodePointSet set = CodePointSet::OfRanges(std::move(ranges));
    return negated ? set.Complement() : set;
  }

  static std::optional<std::uint32_t> OnlyPointOf(const CodePointSet& set) {
    const auto& ranges = set.ranges();
    if (ranges.size() != 1 || ranges[0].first != ranges[0].last) return {};
    return ranges[0].first;
  }

  // Reads one character, or what an escape stands for. Counts its ranges, so that many properties take no long time.
  Result<CodePointSet> Character(bool in_class) {
    KVCACHE_ASSIGN_OR_RETURN(CodePointSet set, OneCharacter(in_class));
    if (set.ranges().size() > 1) ranges_ += set.ranges().size();
    if (ranges_ > PatternTree::kMaxRanges) {
      return Fail(StrCat("has classes with more than ", PatternTree::kMaxRanges, " ranges"));
    }
    return set;
  }

  Result<CodePointSet> OneCharacter(bool in_class) {
    if (!TakeIf('\\')) return CodePointSet::Of(points_[at_++]);
    if (at_ >= points_.size()) return Fail("ends with a backslash");
    const char32_t letter = points_[at_++];
    switch (letter) {
      case 'd': return DecimalDigits();
      case 'D': return DecimalDigits().Complement();
      case 'w': return WordCharacters();
      case 'W': return WordCharacters().Complement();
      case 's': return WhiteSpace();
      case 'S': return WhiteSpace().Complement();
      case 't': return CodePointSet::Of('\t');
      case 'n': return CodePointSet::Of('\n');
      case 'v': return CodePointSet::Of('\v');
      case 'f': return CodePointSet::Of('\f');
      case 'r': return CodePointSet::Of('\r');
      case 'p': return Property();
      case 'P': {
        KVCACHE_ASSIGN_OR_RETURN(const CodePointSet set, Property());
        return set.Complement();
      }
      case 'c': return Control();
      case 'x': return Hex(2);
      case 'u': return UnicodeEscape();
      default: break;
    }
    if (letter == 'b' && in_class) return CodePointSet::Of('\b');
    if (letter == '0' && !(at_ < points_.size() && points_[at_] >= '0' && points_[at_] <= '9')) {
      return CodePointSet::Of(0);
    }
    if ((letter >= '0' && letter <= '9') || letter == 'k') {
      return Fail("has a reference to a group, which no automaton can follow");
    }
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (is_letter) return Fail("has an escape that ECMA-262 does not know");
    return CodePointSet::Of(letter);
  }

  Result<CodePointSet> Property() {
    std::string name;
    if (!TakeIf('{')) return Fail("has a '\\p' without a '{'");
    while (at_ < points_.size() && !Is('}') && points_[at_] < 0x80) {
      name += static_cast<char>(points_[at_++]);
    }
    if (!TakeIf('}')) return Fail("has a '\\p{' without a '}'");
    const auto [known, is_new] = properties_.try_emplace(name);
    if (is_new) known->second = UnicodePropertySet(name);
    if (known->second) return *known->second;
    return Fail(StrCat("has the property ", Quoted(name), ", which ECMA-262 does not know"));
  }

  Result<CodePointSet> Control() {
    const char32_t letter = at_ < points_.size() ? points_[at_] : 0;
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (!is_letter) return Fail("has a '\\c' without a letter");
    ++at_;
    return CodePointSet::Of(letter % 32);
  }

  static std::optional<std::uint32_t> HexDigit(std::uint32_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return {};
  }

  Result<std::uint32_t> HexNumber(int digits) {
    std::uint32_t number = 0;
    for (int i = 0; i < digits; ++i) {
      const auto digit = at_ < points_.size() ? HexDigit(points_[at_]) : std::nullopt;
      if (!digit) return Fail("has an escape without its hexadecimal digits");
      number = number * 16 + *digit;
      ++at_;
    }
    return number;
  }

  Result<CodePointSet> Hex(int digits) {
    KVCACHE_ASSIGN_OR_RETURN(const std::uint32_t number, HexNumber(digits));
    return CodePointSet::Of(number);
  }

  Result<CodePointSet> UnicodeEscape() {
    std::uint32_t point = 0;
    if (TakeIf('{')) {
      const std::size_t begin = at_;
      while (at_ < points_.size() && !Is('}')) {
        KVCACHE_ASSIGN_OR_RETURN(const std::uint32_t digit, HexNumber(1));
        point = point * 16 + digit;
        if (point > kLastCodePoint) return Fail("has a code point above 10FFFF");
      }
      if (at_ == begin || !TakeIf('}')) return Fail("has a '\\u{' without digits and a '}'");
      return CodePointSet::Of(point);
    }
    KVCACHE_ASSIGN_OR_RETURN(point, HexNumber(4));
    const std::size_t behind = at_;
    if (point >= 0xD800 && point <= 0xDBFF && TakeIf(U"\\u")) {
      const auto low = HexNumber(4);
      if (low.ok() && *low >= 0xDC00 && *low <= 0xDFFF) {
        return CodePointSet::Of(0x10000 + ((point - 0xD800) << 10) + (*low - 0xDC00));
      }
      at_ = behind;
    }
    return CodePointSet::Of(point);
  }

  static constexpr std::int64_t kMaxMerged = 1'000'000;

  std::vector<std::uint32_t> points_;
  std::size_t at_ = 0;
  std::size_t ranges_ = 0;  // of classes that were read
  std::map<std::string, std::optional<CodePointSet>> properties_;
  PatternTree tree_;
};

}  // namespace

std::int32_t PatternTree::AddNode(Node node) {
  nodes.push_back(std::move(node));
  return static_cast<std::int32_t>(nodes.size()) - 1;
}

std::int32_t PatternTree::AddSet(const CodePointSet& set) {
  const auto [known, is_new] = set_ids.try_emplace(set, static_cast<std::int32_t>(sets.size()));
  if (is_new) sets.push_back(set);
  return known->second;
}

Result<PatternTree> ParsePattern(std::string_view pattern) {
  return PatternParser(pattern).Parse();
}

PatternTree TreeOfTexts(const std::vector<std::string_view>& texts) {
  PatternTree tree;
  PatternTree::Node all{.kind = PatternKind::kAlternatives};
  for (const std::string_view text : texts) {
    PatternTree::Node one;
    one.children.push_back(tree.AddNode({.kind = PatternKind::kBegin}));
    for (const std::uint32_t point : CodePointsOf(text)) {
      const std::int32_t set = tree.AddSet(CodePointSet::Of(point));
      one.children.push_back(tree.AddNode({.kind = PatternKind::kSet, .set = set}));
    }
    one.children.push_back(tree.AddNode({.kind = PatternKind::kEnd}));
    all.children.push_back(tree.AddNode(std::move(one)));
  }
  tree.root = tree.AddNode(std::move(all));
  return tree;
}

}  // namespace kvcache
