// Python's "…%s…" % values: %s %r %d %i %u %x %X %o %f %F %e %E %g %G and %%, with (name), flags,
// width and precision.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

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
  Origin origin = Origin::kTemplate;  // foreign if one of its bytes is foreign
};

class PercentFormatter {
 public:
  PercentFormatter(const MarkedText& format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {}

  Result<Value> Run() {
    const std::string_view bytes = format_.bytes();
    while (at_ < bytes.size()) {
      const std::size_t percent = std::min(bytes.find('%', at_), bytes.size());
      out_.Append(format_, at_, percent);
      at_ = percent;
      if (at_ < bytes.size()) KVCACHE_RETURN_IF_ERROR(FormatNext());
    }
    if (MustUseAll() && used_ < Count()) {
      return InvalidArgument(
          StrCat("the format uses ", used_, " of ", Count(), " values; must use all"));
    }
    return MakeText(std::move(out_), budget_);
  }

 private:
  // As in Python, the values of lists and dicts may stay unused.
  bool MustUseAll() const {
    return !values_.IsDict() && !(values_.IsList() && values_.list().kind == ListKind::kList);
  }

  char Peek() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }

  std::size_t Count() const {
    const bool tuple = values_.IsList() && values_.list().kind == ListKind::kTuple;
    return tuple ? values_.items().size() : 1;
  }

  Result<int> ParseNumber() {
    int number = 0;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
      number = number * 10 + (Peek() - '0');
      if (number > kMaxWidth) {
        return InvalidArgument(
            StrCat("a width or precision is too large; at most ", kMaxWidth, " is allowed"));
      }
    }
    return number;
  }

  Result<Directive> ParseDirective() {
    Directive directive;
    const std::size_t begin = at_;
    ++at_;
    if (Peek() == '(') {
      const std::size_t end = format_.bytes().find(')', at_);
      if (end == std::string::npos) return InvalidArgument("'%(' has no closing ')'");
      directive.key = std::string(format_.bytes().substr(at_ + 1, end - at_ - 1));
      directive.has_key = true;
      at_ = end + 1;
    }
    for (; std::string_view("-+ 0#").find(Peek()) != std::string_view::npos && Peek() != 0; ++at_) {
      directive.left |= Peek() == '-';
      if (Peek() != '-' && directive.flags.find(Peek()) == std::string::npos) {
        directive.flags += Peek();
      }
    }
    KVCACHE_ASSIGN_OR_RETURN(directive.width, ParseNumber());
    if (Peek() == '.') {
      ++at_;
      KVCACHE_ASSIGN_OR_RETURN(directive.precision, ParseNumber());
    }
    directive.type = Peek();
    if (directive.type != 0) ++at_;
    directive.origin = format_.OriginOf(begin, at_);
    return directive;
  }

  Result<Value> TakeValue(const Directive& directive) {
    if (directive.has_key) {
      const Value* item = values_.IsDict() ? values_.dict().Find(directive.key) : nullptr;
      if (item == nullptr) {
        return InvalidArgument(StrCat("value ", Quoted(directive.key), " is missing"));
      }
      return *item;
    }
    if (used_ >= Count()) {
      return InvalidArgument(StrCat("the format needs more than the ", Count(), " values given"));
    }
    const bool tuple = values_.IsList() && values_.list().kind == ListKind::kTuple;
    return tuple ? values_.items()[used_++] : (++used_, values_);
  }

  Status FormatNext() {
    KVCACHE_ASSIGN_OR_RETURN(const Directive directive, ParseDirective());
    if (directive.type == '%') {
      out_.Append("%", directive.origin);
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(const Value value, TakeValue(directive));
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, FormatValue(directive, value));
    const std::size_t length = CountCharacters(text.bytes());
    const auto width = static_cast<std::size_t>(directive.width);
    const std::string blanks(width > length ? width - length : 0, ' ');
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(text.Footprint() + blanks.size()));
    if (!directive.left) out_.Append(blanks, directive.origin);
    // A foreign directive could repeat the template's own markers.
    if (directive.origin == Origin::kForeign) {
      out_.Append(text.bytes(), Origin::kForeign);
    } else {
      out_.Append(text);
    }
    if (directive.left) out_.Append(blanks, directive.origin);
    return out_.Hold(budget_);
  }

  Result<MarkedText> FormatValue(const Directive& directive, const Value& value) {
    switch (directive.type) {
      case 's': {
        KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(value, budget_));
        return Truncate(text, directive);
      }
      case 'r': {
        if (!value.IsText()) return TextOf(value, budget_);
        return Truncate(QuotedText(value.text()), directive);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return FormatInteger(directive, value);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G': return FormatFloat(directive, value);
      default: return NotSupported("format directive", std::string_view(&directive.type, 1));
    }
  }

  static MarkedText Truncate(const MarkedText& text, const Directive& directive) {
    if (directive.precision < 0) return text;
    const std::vector<std::size_t> offsets = CharacterOffsets(text.bytes());
    const auto length = std::min(static_cast<std::size_t>(directive.precision), offsets.size() - 1);
    return text.Substring(0, offsets[length]);
  }

  // Returns %[flags][width][.precision] and the conversion, for snprintf. The width is included
  // only if zeros pad the number.
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

  static Result<MarkedText> FormatInteger(const Directive& directive, const Value& value) {
    const bool decimal = directive.type == 'd' || directive.type == 'i' || directive.type == 'u';
    if (!value.IsInteger() && !(decimal && value.is(Value::Kind::kFloat))) {
      return InvalidArgument(StrCat("the value of '%", std::string_view(&directive.type, 1),
                                    "' is ", value.KindName(), "; must be an integer"));
    }
    const double number = value.number();
    if (value.is(Value::Kind::kFloat) && !(std::abs(number) < 9e18)) {
      return InvalidArgument(StrCat("the value of '%", std::string_view(&directive.type, 1),
                                    "' has more than 64 bits"));
    }
    const auto whole = value.IsInteger() ? value.integer() : static_cast<std::int64_t>(number);
    if (decimal) return Print(directive, "lld", static_cast<long long>(whole));
    if (whole < 0) {
      return Unsupported(StrCat("a negative value of '%", std::string_view(&directive.type, 1),
                                "' is not supported"));
    }
    const char conversion[] = {'l', 'l', directive.type};
    return Print(directive, std::string_view(conversion, 3),
                 static_cast<unsigned long long>(whole));
  }

  static Result<MarkedText> FormatFloat(const Directive& directive, const Value& value) {
    if (!value.IsNumber()) {
      return InvalidArgument(StrCat("the value of '%", std::string_view(&directive.type, 1),
                                    "' is ", value.KindName(), "; must be a number"));
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
