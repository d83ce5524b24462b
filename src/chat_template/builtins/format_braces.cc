// Python's "…{}…".format(values): {} {0} {name} with .attribute, [item], !r !s and a format
// specification: [[fill]align][sign][#][0][width][,][.precision][type].
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/parse_number.h"
#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

constexpr std::int64_t kMaxFieldWidth = 10000;

struct Specification {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool alternate = false;
  bool commas = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

Status BadFormat(std::string_view what) {
  return InvalidArgument(StrCat("the format of 'format' ", what));
}

bool IsAlign(std::string_view text, std::size_t at) {
  return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
}

// Takes a number from the front of `text`.
Result<std::int64_t> TakeNumber(std::string_view& text, std::int64_t otherwise) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0) return otherwise;
  const auto number = ParseNumber<std::int64_t>(text.substr(0, digits));
  if (!number || *number > kMaxFieldWidth) return BadFormat("has a width that is too large");
  text.remove_prefix(digits);
  return *number;
}

bool TakeIf(std::string_view& text, char wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(1);
  return true;
}

Result<Specification> ParseSpecification(std::string_view text) {
  Specification spec;
  const std::size_t first = text.empty() ? 0 : CharacterBytes(text, 0);
  if (IsAlign(text, first)) {
    spec.fill = std::string(text.substr(0, first));
    text.remove_prefix(first);
  }
  if (IsAlign(text, 0)) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  if (text.starts_with('+') || text.starts_with('-') || text.starts_with(' ')) {
    spec.sign = text[0];
    text.remove_prefix(1);
  }
  spec.alternate = TakeIf(text, '#');
  if (text.starts_with('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  KVCACHE_ASSIGN_OR_RETURN(spec.width, TakeNumber(text, 0));
  spec.commas = TakeIf(text, ',');
  if (TakeIf(text, '.')) {
    KVCACHE_ASSIGN_OR_RETURN(spec.precision, TakeNumber(text, -1));
    if (spec.precision < 0) return BadFormat("lacks a precision behind '.'");
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  return text.empty() ? Result<Specification>(spec) : BadFormat("has an unknown specification");
}

// Puts commas between each three digits before the point.
std::string WithCommas(std::string digits) {
  std::size_t at = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

Result<std::string> IntegerDigits(const Specification& spec, std::uint64_t number) {
  constexpr std::string_view kTypes = "dnxXob";
  constexpr int kBases[] = {10, 10, 16, 16, 8, 2};
  const std::size_t type = spec.type == 0 ? 0 : kTypes.find(spec.type);
  if (type == std::string_view::npos) {
    return NotSupported("format type", std::string_view(&spec.type, 1));
  }
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), number, kBases[type]);
  std::string digits(text, end.ptr);
  if (spec.type == 'X') {
    for (char& c : digits) c = c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  if (spec.alternate && kBases[type] != 10) digits.insert(0, StrCat('0', spec.type));
  return digits;
}

Result<std::string> FloatDigits(const Specification& spec, double number) {
  if (spec.type == 0 && spec.precision < 0) return FloatText(number);
  if (std::string_view("fFeEgG%").find(spec.type) == std::string_view::npos) {
    return NotSupported("format type", std::string_view(&spec.type, 1));
  }
  const char conversion = spec.type == '%' ? 'f' : spec.type;
  const char format[] = {'%', '.', '*', conversion, 0};
  std::string text(static_cast<std::size_t>(kMaxFieldWidth + 400), '\0');
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const int size = std::snprintf(text.data(), text.size(), format, precision,
                                 spec.type == '%' ? 100.0 * number : number);
  text.resize(static_cast<std::size_t>(std::max(size, 0)));
  return spec.type == '%' ? text + "%" : text;
}

class BraceFormatter {
 public:
  BraceFormatter(const MarkedText& format, const Arguments& arguments, Environment& env)
      : format_(format), arguments_(arguments), env_(env) {}

  Result<Value> Run() {
    const std::string_view bytes = format_.bytes();
    while (at_ < bytes.size()) {
      const std::size_t brace = std::min(bytes.find_first_of("{}", at_), bytes.size());
      out_.Append(format_, at_, brace);
      at_ = brace;
      if (at_ == bytes.size()) break;
      if (at_ + 1 < bytes.size() && bytes[at_ + 1] == bytes[at_]) {
        out_.Append(format_, at_, at_ + 1);
        at_ += 2;
        continue;
      }
      if (bytes[at_] == '}') return BadFormat("has a single '}'");
      KVCACHE_RETURN_IF_ERROR(Field());
    }
    return MakeText(std::move(out_), env_.budget);
  }

 private:
  Status Field() {
    const std::string_view bytes = format_.bytes();
    const std::size_t end = bytes.find_first_of("{}", at_ + 1);
    if (end == std::string_view::npos) return BadFormat("has a '{' without a '}'");
    if (bytes[end] == '{') return NotSupported("format", "nested braces");
    const Origin origin = format_.OriginOf(at_, end + 1);
    std::string_view field = bytes.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string_view rest = field.substr(std::min(colon + 1, field.size()));
    KVCACHE_ASSIGN_OR_RETURN(const Specification spec, ParseSpecification(rest));
    field = field.substr(0, colon);
    const std::size_t bang = std::min(field.find('!'), field.size());
    const std::string_view conversion = field.substr(bang);
    KVCACHE_ASSIGN_OR_RETURN(Value value, Find(field.substr(0, bang)));
    if (!conversion.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(value, Convert(value, conversion));
    }
    return Add(value, spec, origin);
  }

  Result<Value> Convert(const Value& value, std::string_view conversion) {
    if (conversion == "!r" && value.IsText()) return Value(QuotedText(value.text()));
    if (conversion != "!s" && conversion != "!r") {
      return NotSupported("format conversion", conversion);
    }
    KVCACHE_ASSIGN_OR_RETURN(MarkedText text, TextOf(value, env_.budget));
    return Value(std::move(text));
  }

  // Returns the value of "name.attribute[item]".
  Result<Value> Find(std::string_view path) {
    const std::size_t end = std::min(path.find_first_of(".["), path.size());
    KVCACHE_ASSIGN_OR_RETURN(Value value, First(path.substr(0, end)));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool is_item = path[0] == '[';
      const std::size_t stop =
          std::min(is_item ? path.find(']') : path.find_first_of(".[", 1), path.size());
      const std::string_view name = path.substr(1, stop - 1);
      const auto index = ParseNumber<std::int64_t>(name);
      const MarkedText key(name, Origin::kTemplate);
      if (!is_item) {
        KVCACHE_ASSIGN_OR_RETURN(value, GetAttribute(value, key, env_));
      } else {
        KVCACHE_ASSIGN_OR_RETURN(value, GetItem(value, index ? Value(*index) : Value(key), env_));
      }
      path.remove_prefix(std::min(stop + (is_item ? 1 : 0), path.size()));
    }
    return value;
  }

  Result<Value> First(std::string_view name) {
    const auto index = ParseNumber<std::int64_t>(name);
    if (name.empty() || index) {
      (name.empty() ? counts_ : numbers_) = true;
      if (counts_ && numbers_) return BadFormat("mixes '{}' and '{0}'");
      const auto at = static_cast<std::size_t>(name.empty() ? next_++ : *index);
      if (at < arguments_.positional.size()) return arguments_.positional[at];
      return InvalidArgument(
          StrCat("the format needs more than the ", arguments_.positional.size(), " values given"));
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known.bytes() == name) return value;
    }
    return InvalidArgument(StrCat("value ", Quoted(name), " is missing"));
  }

  // Appends the value with its sign and padding.
  Status Add(const Value& value, const Specification& spec, Origin origin) {
    KVCACHE_RETURN_IF_ERROR(env_.budget.Spend(Budget::kStep));
    MarkedText sign;
    MarkedText text;
    const bool number = value.IsNumber() && !value.is(Value::Kind::kBool) && spec.type != 's';
    if (number) {
      KVCACHE_RETURN_IF_ERROR(Number(value, spec, origin, sign, text));
    } else {
      if (spec.type != 0 && spec.type != 's') {
        return NotSupported("format type", std::string_view(&spec.type, 1));
      }
      KVCACHE_ASSIGN_OR_RETURN(text, TextOf(value, env_.budget));
      if (spec.precision >= 0) {
        const std::vector<std::size_t> at = CharacterOffsets(text.bytes());
        text = text.Substring(
            0, at[std::min(static_cast<std::size_t>(spec.precision), at.size() - 1)]);
      }
    }
    // A foreign format could repeat the template's own markers.
    if (origin == Origin::kForeign) text = MarkedText(text.bytes(), Origin::kForeign);
    return Pad(spec, sign, text, origin, number ? '>' : '<');
  }

  Status Number(const Value& value, const Specification& spec, Origin origin, MarkedText& sign,
                MarkedText& text) const {
    const bool negative = value.number() < 0.0;
    const bool whole =
        value.IsInteger() && std::string_view("fFeEgG%").find(spec.type) == std::string_view::npos;
    const auto size = static_cast<std::uint64_t>(whole ? value.integer() : 0);
    KVCACHE_ASSIGN_OR_RETURN(std::string digits,
                             whole || (spec.type == 0 && value.IsInteger())
                                 ? IntegerDigits(spec, negative ? std::uint64_t{0} - size : size)
                                 : FloatDigits(spec, negative ? -value.number() : value.number()));
    if (spec.commas) digits = WithCommas(std::move(digits));
    if (negative) sign.Append("-", origin);
    if (!negative && spec.sign != '-') sign.Append(std::string_view(&spec.sign, 1), origin);
    text.Append(digits, origin);
    return Status::Ok();
  }

  Status Pad(const Specification& spec, const MarkedText& sign, const MarkedText& text,
             Origin origin, char usual) {
    const std::size_t length = CountCharacters(text.bytes()) + sign.size();
    const auto width = static_cast<std::size_t>(spec.width);
    const std::size_t blanks = width > length ? width - length : 0;
    const char align = spec.align == 0 ? usual : spec.align;
    const std::size_t left = align == '<' ? 0 : align == '^' ? blanks / 2 : blanks;
    const auto fill = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) out_.Append(spec.fill, origin);
    };
    KVCACHE_RETURN_IF_ERROR(env_.budget.Spend(text.size() + blanks));
    if (align == '=') out_.Append(sign);
    fill(left);
    if (align != '=') out_.Append(sign);
    out_.Append(text);
    fill(blanks - left);
    return out_.Hold(env_.budget);
  }

  const MarkedText& format_;
  const Arguments& arguments_;
  Environment& env_;
  MarkedText out_;
  std::size_t at_ = 0;
  std::int64_t next_ = 0;  // the value of the next "{}"
  bool counts_ = false;    // a "{}" was read
  bool numbers_ = false;   // a "{0}" was read
};

}  // namespace

Result<Value> FormatBraces(const MarkedText& format, const Arguments& arguments, Environment& env) {
  return BraceFormatter(format, arguments, env).Run();
}

}  // namespace kvcache::jinja
