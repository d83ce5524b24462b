// Python's "…%s…" % values: %s %r %d %i %u %f %F %e %g %x %X %o %c and %%, with (name), flags,
// width and precision.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/strings.h"
#include "chat_template/builtins.h"
#include "chat_template/python_text.h"

namespace kvcache::jinja {
namespace {

constexpr int kMaxWidth = 10000;

struct Directive {
  std::string key;
  bool has_key = false;
  bool left = false;
  std::string flags;  // for snprintf
  int width = 0;
  int precision = -1;
  char type = 0;
  Origin origin = Origin::kTemplate;  // foreign if one of its bytes is
};

class PercentFormatter {
 public:
  PercentFormatter(const MarkedText& format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {}

  Result<Value> Run() {
    const std::string& bytes = format_.bytes();
    while (at_ < bytes.size()) {
      const std::size_t percent = std::min(bytes.find('%', at_), bytes.size());
      out_.Append(format_, at_, percent);
      at_ = percent;
      if (at_ < bytes.size()) KVCACHE_RETURN_IF_ERROR(One());
    }
    if (TakesAll() && used_ < Count()) return Wrong("more values than '%' in the format");
    return MakeText(std::move(out_), budget_);
  }

 private:
  // Python lets lists and dicts stand for values that nobody took.
  bool TakesAll() const {
    return !values_.IsDict() && !(values_.IsList() && values_.list().kind == ListKind::kList);
  }

  char Now() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }

  std::size_t Count() const {
    const bool tuple = values_.IsList() && values_.list().kind == ListKind::kTuple;
    return tuple ? values_.items().size() : 1;
  }

  Result<int> Number() {
    int number = 0;
    for (; Now() >= '0' && Now() <= '9'; ++at_) {
      number = number * 10 + (Now() - '0');
      if (number > kMaxWidth) return Wrong(StrCat("a width of more than ", kMaxWidth));
    }
    return number;
  }

  Result<Directive> Parse() {
    Directive directive;
    const std::size_t begin = at_;
    ++at_;
    if (Now() == '(') {
      const std::size_t end = format_.bytes().find(')', at_);
      if (end == std::string::npos) return Wrong("a '%(' without ')'");
      directive.key = format_.bytes().substr(at_ + 1, end - at_ - 1);
      directive.has_key = true;
      at_ = end + 1;
    }
    for (; std::string_view("-+ 0#").find(Now()) != std::string_view::npos && Now() != 0; ++at_) {
      directive.left |= Now() == '-';
      if (Now() != '-' && directive.flags.find(Now()) == std::string::npos) {
        directive.flags += Now();
      }
    }
    KVCACHE_ASSIGN_OR_RETURN(directive.width, Number());
    if (Now() == '.') {
      ++at_;
      KVCACHE_ASSIGN_OR_RETURN(directive.precision, Number());
    }
    directive.type = Now();
    if (directive.type != 0) ++at_;
    directive.origin = format_.OriginOf(begin, at_);
    return directive;
  }

  Result<Value> Take(const Directive& directive) {
    if (directive.has_key) {
      const Value* item = values_.IsDict() ? values_.dict().Find(directive.key) : nullptr;
      if (item == nullptr) return Wrong(StrCat("there is no value ", Quoted(directive.key)));
      return *item;
    }
    if (used_ >= Count()) return Wrong("fewer values than '%' in the format");
    const bool tuple = values_.IsList() && values_.list().kind == ListKind::kTuple;
    return tuple ? values_.items()[used_++] : (++used_, values_);
  }

  Status One() {
    KVCACHE_ASSIGN_OR_RETURN(const Directive directive, Parse());
    if (directive.type == '%') {
      out_.Append("%", directive.origin);
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(const Value value, Take(directive));
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, Written(directive, value));
    const std::size_t length = CountCharacters(text.bytes());
    const auto width = static_cast<std::size_t>(directive.width);
    const std::string blanks(width > length ? width - length : 0, ' ');
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(text.Footprint() + blanks.size()));
    if (!directive.left) out_.Append(blanks, directive.origin);
    // A directive from outside could repeat the template's own marks.
    if (directive.origin == Origin::kForeign) {
      out_.Append(text.bytes(), Origin::kForeign);
    } else {
      out_.Append(text);
    }
    if (directive.left) out_.Append(blanks, directive.origin);
    return Status::Ok();
  }

  Result<MarkedText> Written(const Directive& directive, const Value& value) {
    switch (directive.type) {
      case 's': {
        KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(value, budget_));
        return Cut(text, directive);
      }
      case 'r': {
        if (!value.IsText()) return TextOf(value, budget_);
        return Cut(QuotedText(value.text()), directive);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return Whole(directive, value);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G': return Fraction(directive, value);
      default: return NotOffered("format", std::string_view(&directive.type, 1));
    }
  }

  static MarkedText Cut(const MarkedText& text, const Directive& directive) {
    if (directive.precision < 0) return text;
    const std::vector<std::size_t> offsets = CharacterOffsets(text.bytes());
    const auto most = std::min(static_cast<std::size_t>(directive.precision), offsets.size() - 1);
    return text.Substring(0, offsets[most]);
  }

  // %[flags][width][.precision]: zeros in front need the width here.
  static std::string Format(const Directive& directive, std::string_view conversion) {
    std::string format = "%" + directive.flags;
    if (directive.flags.find('0') != std::string::npos && !directive.left) {
      format += std::to_string(directive.width);
    }
    if (directive.precision >= 0) format += "." + std::to_string(directive.precision);
    return format.append(conversion);
  }

  template <typename T>
  static MarkedText Print(const Directive& directive, std::string_view conversion, T number) {
    const std::string format = Format(directive, conversion);
    std::string text(static_cast<std::size_t>(2 * kMaxWidth + 400), '\0');
    const int length = std::snprintf(text.data(), text.size(), format.c_str(), number);
    text.resize(static_cast<std::size_t>(std::max(length, 0)));
    return {text, directive.origin};
  }

  static Result<MarkedText> Whole(const Directive& directive, const Value& value) {
    const bool decimal = directive.type == 'd' || directive.type == 'i' || directive.type == 'u';
    if (!value.IsInteger() && !(decimal && value.is(Value::Kind::kFloat))) {
      return Wrong(StrCat("'%", std::string_view(&directive.type, 1), "' takes an integer, not ",
                          value.KindName()));
    }
    const double number = value.number();
    if (value.is(Value::Kind::kFloat) && !(std::abs(number) < 9e18)) {
      return Wrong("an integer of more than 64 bits");
    }
    const auto whole = value.IsInteger() ? value.integer() : static_cast<std::int64_t>(number);
    if (decimal) return Print(directive, "lld", static_cast<long long>(whole));
    if (whole < 0) return NotOffered("format of a negative number", "%x");
    const char conversion[] = {'l', 'l', directive.type};
    return Print(directive, std::string_view(conversion, 3),
                 static_cast<unsigned long long>(whole));
  }

  static Result<MarkedText> Fraction(const Directive& directive, const Value& value) {
    if (!value.IsNumber()) {
      return Wrong(StrCat("'%", std::string_view(&directive.type, 1), "' takes a number, not ",
                          value.KindName()));
    }
    return Print(directive, std::string_view(&directive.type, 1), value.number());
  }

  const MarkedText& format_;
  const Value& values_;
  Budget& budget_;
  MarkedText out_;
  std::size_t at_ = 0;
  std::size_t used_ = 0;
};

}  // namespace

Result<Value> FormatPercent(const MarkedText& format, const Value& values, Budget& budget) {
  return PercentFormatter(format, values, budget).Run();
}

}  // namespace kvcache::jinja
