// Helpers of methods, filters and tests.
#include <algorithm>
#include <bit>
#include <numeric>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {

Status NotSupported(std::string_view what, std::string_view name) {
  return Unsupported(StrCat(what, " ", Quoted(name), " is not supported"));
}

Result<std::int64_t> IntegerOr(const Value* value, std::int64_t otherwise, std::string_view name) {
  if (value == nullptr) return otherwise;
  if (value->IsInteger()) return value->integer();
  return InvalidArgument(
      StrCat("argument '", name, "' is ", value->KindName(), "; must be an integer"));
}

Result<MarkedText> TextOr(const Value* value, std::string_view otherwise, std::string_view name) {
  if (value == nullptr) return MarkedText(otherwise, Origin::kTemplate);
  if (value->IsText()) return value->text();
  if (value->IsUndefined()) return InvalidArgument(value->why());
  return InvalidArgument(
      StrCat("argument '", name, "' is ", value->KindName(), "; must be a string"));
}

bool BoolOr(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : value->IsTruthy();
}

Result<std::int64_t> LengthOf(const Value& value, Environment& env) {
  switch (value.kind()) {
    case Value::Kind::kUndefined: return 0;
    case Value::Kind::kText:
      KVCACHE_RETURN_IF_ERROR(env.budget.Spend(value.text().size() / 4));
      return static_cast<std::int64_t>(CountCharacters(value.bytes()));
    case Value::Kind::kList: return static_cast<std::int64_t>(value.items().size());
    case Value::Kind::kDict: return static_cast<std::int64_t>(value.dict().size());
    case Value::Kind::kLoop: return value.loop().Length(env);
    default: return InvalidArgument(StrCat(value.KindName(), " has no length"));
  }
}

Result<Value> ListOf(const MarkedText& text, const std::vector<TextRange>& pieces, Budget& budget,
                     Origin by) {
  KVCACHE_RETURN_IF_ERROR(budget.Fits(pieces.size() * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const TextRange& piece : pieces) {
    KVCACHE_ASSIGN_OR_RETURN(Value item, MakeText(text.CutOut(piece.begin, piece.end, by), budget));
    items.push_back(std::move(item));
  }
  return MakeList(std::move(items), budget);
}

Result<Value> StripText(const MarkedText& text, Sides sides, const Arguments& arguments,
                        Budget& budget) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(arguments, {"chars"}));
  const bool spaces = given[0] == nullptr || given[0]->IsNone();
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText set, TextOr(spaces ? nullptr : given[0], "", "chars"));
  KVCACHE_RETURN_IF_ERROR(budget.Spend(text.size() / 16 * (1 + set.size()) + set.size()));
  const TextRange left =
      StripRange(text.bytes(), sides, spaces ? StripSet::kSpace : StripSet::kGiven, set.bytes());
  return MakeText(text.CutOut(left.begin, left.end, set.OriginOfAll()), budget);
}

Result<Value> ChangeTextCase(const MarkedText& text, Case to, const Arguments& arguments,
                             Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(Bind(arguments, {}).status());
  KVCACHE_RETURN_IF_ERROR(budget.Spend(4 * text.size()));
  return MakeText(MapCase(text, to), budget);
}

namespace {

// Inserts `to` before each character and at the end, as Python replaces an empty string.
MarkedText Interleave(const MarkedText& text, const MarkedText& to, std::int64_t max_count) {
  MarkedText out;
  std::size_t at = 0;
  for (; max_count != 0; --max_count) {
    out.Append(to);
    if (at == text.size()) return out;
    const std::size_t next = at + CharacterBytes(text.bytes(), at);
    out.Append(text, at, next);
    at = next;
  }
  out.Append(text, at, text.size());
  return out;
}

}  // namespace

Result<MarkedText> Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                           std::int64_t max_count, Budget& budget) {
  if (from.empty()) {
    const std::uint64_t size = (text.size() + 1) * (to.Footprint() + 2) + text.Footprint();
    KVCACHE_RETURN_IF_ERROR(budget.Fits(size));
    KVCACHE_RETURN_IF_ERROR(budget.Spend(size));
    return Interleave(text, to, max_count);
  }
  const Origin by = from.OriginOfAll();
  MarkedText out;
  std::size_t begin = 0;
  for (; max_count != 0; --max_count) {
    const std::size_t at = FindText(text.bytes(), from.bytes(), begin);
    if (at == std::string_view::npos) break;
    KVCACHE_RETURN_IF_ERROR(budget.Spend(2 * (at - begin) + to.Footprint() + 1));
    out.AppendCut(text, begin, at, by);
    out.Append(to);
    KVCACHE_RETURN_IF_ERROR(out.Hold(budget));
    begin = at + from.size();
  }
  KVCACHE_RETURN_IF_ERROR(budget.Spend(2 * (text.size() - begin)));
  out.AppendCut(text, begin, text.size(), by);
  return out;
}

Result<MarkedText> Join(const std::vector<Value>& items, const MarkedText& separator,
                        Budget& budget) {
  MarkedText out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(budget.Spend(separator.Footprint()));
    if (i > 0) out.Append(separator);
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(items[i], budget));
    out.Append(text);
    KVCACHE_RETURN_IF_ERROR(out.Hold(budget));
  }
  return out;
}

// A merge sort. std::stable_sort cannot return the errors of comparisons.
Status SortBy(const std::vector<Value>& keys, bool reverse, std::vector<std::size_t>& order,
              Budget& budget) {
  std::vector<std::size_t> merged(order.size());
  for (std::size_t width = 1; width < order.size(); width *= 2) {
    for (std::size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, order.size());
      const std::size_t end = std::min(begin + 2 * width, order.size());
      std::size_t left = begin;
      std::size_t right = middle;
      for (std::size_t to = begin; to < end; ++to) {
        bool take_right = left == middle;
        if (left < middle && right < end) {
          const Value& a = keys[order[left]];
          const Value& b = keys[order[right]];
          KVCACHE_ASSIGN_OR_RETURN(take_right, reverse ? Less(a, b, budget) : Less(b, a, budget));
        }
        merged[to] = order[take_right ? right++ : left++];
      }
    }
    order.swap(merged);
  }
  return Status::Ok();
}

}  // namespace kvcache::jinja
