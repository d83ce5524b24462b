// Python's str(), repr() and json.dumps of values.
#include <algorithm>
#include <numeric>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

// Appends punctuation around the texts of others. It is foreign, so it cannot be part of a control
// token.
void AddForeign(std::string_view text, MarkedText& out) {
  out.Append(text, Origin::kForeign);
}

std::string NumberText(const Value& value) {
  if (value.is(Value::Kind::kBool)) return value.boolean() ? "True" : "False";
  return value.is(Value::Kind::kInt) ? StrCat(value.integer()) : FloatText(value.number());
}

class Repr {
 public:
  explicit Repr(Budget& budget) : budget_(budget) {}

  Status Add(const Value& value, MarkedText& out) {
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(Budget::kStep));
    KVCACHE_RETURN_IF_ERROR(out.Hold(budget_));
    switch (value.kind()) {
      case Value::Kind::kUndefined: return Plain("Undefined", out);
      case Value::Kind::kNone: return Plain("None", out);
      case Value::Kind::kText:
        KVCACHE_RETURN_IF_ERROR(budget_.Spend(2 * value.text().size()));
        out.Append(QuotedText(value.text()));
        return Status::Ok();
      case Value::Kind::kList: return Items(value.list(), out);
      case Value::Kind::kDict: return Pairs(value.dict(), out);
      case Value::Kind::kNamespace:
      case Value::Kind::kCallable:
      case Value::Kind::kLoop:
      case Value::Kind::kGenerator:
        return InvalidArgument(StrCat(value.KindName(), " cannot be printed"));
      default: return Plain(NumberText(value), out);
    }
  }

 private:
  Status Plain(std::string_view text, MarkedText& out) {
    AddForeign(text, out);
    return budget_.Spend(text.size());
  }

  Status Items(const List& list, MarkedText& out) {
    const bool tuple = list.kind == ListKind::kTuple;
    AddForeign(tuple ? "(" : "[", out);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) AddForeign(", ", out);
      KVCACHE_RETURN_IF_ERROR(Add(list.items[i], out));
    }
    AddForeign(tuple ? (list.items.size() == 1 ? ",)" : ")") : "]", out);
    return Status::Ok();
  }

  Status Pairs(const Dict& dict, MarkedText& out) {
    AddForeign("{", out);
    bool first = true;
    for (const auto& [key, value] : dict.items()) {
      if (!first) AddForeign(", ", out);
      first = false;
      KVCACHE_RETURN_IF_ERROR(Add(key, out));
      AddForeign(": ", out);
      KVCACHE_RETURN_IF_ERROR(Add(value, out));
    }
    AddForeign("}", out);
    return Status::Ok();
  }

  Budget& budget_;
};

class Json {
 public:
  Json(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  Status Add(const Value& value, MarkedText& out, int level) {
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(Budget::kStep));
    KVCACHE_RETURN_IF_ERROR(out.Hold(budget_));
    switch (value.kind()) {
      case Value::Kind::kNone: return Plain("null", out);
      case Value::Kind::kBool: return Plain(value.boolean() ? "true" : "false", out);
      case Value::Kind::kInt: return Plain(StrCat(value.integer()), out);
      case Value::Kind::kFloat: return Plain(JsonFloat(value.number()), out);
      case Value::Kind::kText: return Quote(value.text(), out);
      case Value::Kind::kList: return Items(value.items(), out, level);
      case Value::Kind::kDict: return Pairs(value.dict(), out, level);
      default: break;
    }
    return InvalidArgument(StrCat(value.KindName(), " cannot be converted to JSON",
                                  value.IsUndefined() ? StrCat(": ", value.why()) : ""));
  }

 private:
  static std::string JsonFloat(double number) {
    if (number != number) return "NaN";
    const std::string text = FloatText(number);
    if (text == "inf") return "Infinity";
    return text == "-inf" ? "-Infinity" : text;
  }

  Status Plain(std::string_view text, MarkedText& out) {
    AddForeign(text, out);
    return budget_.Spend(text.size());
  }

  static void Hex(std::uint32_t unit, Origin origin, MarkedText& out) {
    constexpr char kHex[] = "0123456789abcdef";
    const char text[] = {
        '\\',           'u', kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15],
        kHex[unit & 15]};
    out.Append(std::string_view(text, sizeof(text)), origin);
  }

  // Appends the escape of a character. Returns false if the character needs none.
  static bool Escape(std::uint32_t c, Origin origin, bool ascii, MarkedText& out) {
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    constexpr std::string_view kNames = "\"\\nrtfb";
    if (c < 0x80 && kNamed.find(static_cast<char>(c)) != std::string_view::npos) {
      out.Append("\\", origin);
      out.Append(kNames.substr(kNamed.find(static_cast<char>(c)), 1), origin);
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
      Hex(c, origin, out);
    } else if (ascii && c >= 0x10000) {
      Hex(0xD800 + ((c - 0x10000) >> 10), origin, out);
      Hex(0xDC00 + ((c - 0x10000) & 0x3FF), origin, out);
    } else {
      return false;
    }
    return true;
  }

  Status Quote(const MarkedText& text, MarkedText& out) {
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(2 * text.size() + 2));
    AddForeign("\"", out);
    std::size_t plain = 0;  // the begin of the characters that need no escape
    for (std::size_t at = 0; at < text.size();) {
      const auto byte = static_cast<unsigned char>(text.bytes()[at]);
      if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x80 || !style_.ascii)) {
        ++at;
        continue;
      }
      const std::size_t next = at + CharacterBytes(text.bytes(), at);
      out.Append(text, plain, at);
      plain = next;
      const std::uint32_t c = CodePoint(text.bytes(), at);
      if (!Escape(c, text.OriginOf(at, next), style_.ascii, out)) out.Append(text, at, next);
      at = next;
    }
    out.Append(text, plain, text.size());
    AddForeign("\"", out);
    return Status::Ok();
  }

  Status NewLine(MarkedText& out, int level) {
    if (!style_.lines) return Status::Ok();
    AddForeign("\n", out);
    for (int i = 0; i < level; ++i) out.Append(style_.indent);
    return budget_.Spend(1 + style_.indent.size() * static_cast<std::size_t>(level));
  }

  Status Separate(bool first, MarkedText& out, int level) {
    if (!first) out.Append(style_.item_separator);
    KVCACHE_RETURN_IF_ERROR(budget_.Spend(style_.item_separator.size()));
    return NewLine(out, level);
  }

  Status Items(const std::vector<Value>& items, MarkedText& out, int level) {
    if (items.empty()) return Plain("[]", out);
    AddForeign("[", out);
    for (std::size_t i = 0; i < items.size(); ++i) {
      KVCACHE_RETURN_IF_ERROR(Separate(i == 0, out, level + 1));
      KVCACHE_RETURN_IF_ERROR(Add(items[i], out, level + 1));
    }
    KVCACHE_RETURN_IF_ERROR(NewLine(out, level));
    return Plain("]", out);
  }

  Status Pairs(const Dict& dict, MarkedText& out, int level) {
    if (dict.size() == 0) return Plain("{}", out);
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<std::size_t> order, Order(dict));
    AddForeign("{", out);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto& [key, value] = dict.items()[order[i]];
      KVCACHE_RETURN_IF_ERROR(Separate(i == 0, out, level + 1));
      KVCACHE_RETURN_IF_ERROR(Key(key, out));
      out.Append(style_.key_separator);
      KVCACHE_RETURN_IF_ERROR(budget_.Spend(style_.key_separator.size()));
      KVCACHE_RETURN_IF_ERROR(Add(value, out, level + 1));
    }
    KVCACHE_RETURN_IF_ERROR(NewLine(out, level));
    return Plain("}", out);
  }

  Result<std::vector<std::size_t>> Order(const Dict& dict) {
    std::vector<std::size_t> order(dict.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (!style_.sorted) return order;
    std::vector<Value> keys;
    for (const Dict::Item& item : dict.items()) keys.push_back(item.first);
    KVCACHE_RETURN_IF_ERROR(SortBy(keys, false, order, budget_));
    return order;
  }

  Status Key(const Value& key, MarkedText& out) {
    if (key.IsText()) return Quote(key.text(), out);
    if (!key.IsNumber() && !key.IsNone()) {
      return InvalidArgument(StrCat(key.KindName(), " cannot be a JSON key"));
    }
    AddForeign("\"", out);
    KVCACHE_RETURN_IF_ERROR(Add(key, out, 0));
    AddForeign("\"", out);
    return Status::Ok();
  }

  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

Result<MarkedText> TextOf(const Value& value, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  switch (value.kind()) {
    case Value::Kind::kUndefined: return MarkedText();
    case Value::Kind::kNone: return MarkedText("None", Origin::kTemplate);
    case Value::Kind::kText: return value.text();
    case Value::Kind::kList:
    case Value::Kind::kDict: {
      MarkedText out;
      KVCACHE_RETURN_IF_ERROR(Repr(budget).Add(value, out));
      return out;
    }
    case Value::Kind::kNamespace:
    case Value::Kind::kCallable:
    case Value::Kind::kLoop:
    case Value::Kind::kGenerator:
      return InvalidArgument(StrCat(value.KindName(), " cannot be printed"));
    default: return MarkedText(NumberText(value), Origin::kTemplate);
  }
}

Result<MarkedText> JsonOf(const Value& value, const JsonStyle& style, Budget& budget) {
  MarkedText out;
  KVCACHE_RETURN_IF_ERROR(Json(style, budget).Add(value, out, 0));
  return out;
}

}  // namespace kvcache::jinja
