#include "grammar/text/unicode_property.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace kvcache {
namespace {

std::uint32_t DigitOf(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  return static_cast<std::uint32_t>(kDigits.find(c));
}

// Reads a number of the tables: five bits a digit, the lowest first.
std::uint32_t ReadNumber(std::string_view text, std::size_t& at) {
  std::uint32_t number = 0;
  for (unsigned shift = 0;; shift += 5) {
    const std::uint32_t digit = DigitOf(text[at++]);
    number |= (digit & 31) << shift;
    if (digit < 32) return number;
  }
}

CodePointSet Unpacked(std::string_view text) {
  CodePointSet set;
  std::uint32_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t first = end + ReadNumber(text, at);
    end = first + ReadNumber(text, at) + 1;
    set.Append(first, end - 1);
  }
  return set;
}

// Returns the points that an odd number of the row and its bases have.
CodePointSet SetOf(const UnicodeProperty& property) {
  CodePointSet set = Unpacked(property.ranges);
  for (std::string_view base = property.base; !base.empty();) {
    const std::size_t end = std::min(base.find(' '), base.size());
    set.Toggle(*UnicodePropertySet(base.substr(0, end)));
    base.remove_prefix(std::min(end + 1, base.size()));
  }
  return set;
}

bool HasName(std::string_view names, std::string_view name) {
  if (name.empty() || name.find('|') != name.npos) return false;
  const std::string wrapped = "|" + std::string(names) + "|";
  return wrapped.find("|" + std::string(name) + "|") != wrapped.npos;
}

std::optional<CodePointSet> FindIn(std::span<const UnicodeProperty> table, std::string_view name) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const UnicodeProperty& property) {
    return HasName(property.names, name);
  });
  return row == table.end() ? std::nullopt : std::optional(SetOf(*row));
}

// Groups of categories, by the first letters of their short names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kGroups = {
    {{"L|Letter", "L"},
     {"M|Mark|Combining_Mark", "M"},
     {"N|Number", "N"},
     {"P|Punctuation|punct", "P"},
     {"S|Symbol", "S"},
     {"Z|Separator", "Z"},
     {"C|Other", "C"}}};

std::optional<CodePointSet> Category(std::string_view name) {
  const auto all_of = [](auto&& is_in) {
    CodePointSet set;
    for (const UnicodeProperty& property : kUnicodeCategories) {
      if (is_in(property.names)) set.Add(SetOf(property));
    }
    return set;
  };
  if (HasName("LC|Cased_Letter", name)) {
    return all_of([](std::string_view names) {
      return names.starts_with("Lu") || names.starts_with("Ll") || names.starts_with("Lt");
    });
  }
  for (const auto& [names, letter] : kGroups) {
    if (!HasName(names, name)) continue;
    return all_of([first = letter[0]](std::string_view of_row) { return of_row.front() == first; });
  }
  return FindIn(kUnicodeCategories, name);
}

// The table has no row for the points without any script.
std::optional<CodePointSet> Script(std::string_view name) {
  if (!HasName("Zzzz|Unknown", name)) return FindIn(kUnicodeScripts, name);
  CodePointSet known;
  for (const UnicodeProperty& property : kUnicodeScripts) known.Add(SetOf(property));
  return known.Complement();
}

std::optional<CodePointSet> ScriptExtensions(std::string_view name) {
  auto extended = FindIn(kUnicodeScriptExtensions, name);
  return extended ? std::move(extended) : Script(name);
}

}  // namespace

std::optional<CodePointSet> UnicodePropertySet(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals != text.npos) {
    const std::string_view name = text.substr(0, equals);
    const std::string_view value = text.substr(equals + 1);
    if (HasName("gc|General_Category", name)) return Category(value);
    if (HasName("sc|Script", name)) return Script(value);
    if (HasName("scx|Script_Extensions", name)) return ScriptExtensions(value);
    return {};
  }
  if (text == "Any") return CodePointSet::All();
  if (text == "ASCII") return CodePointSet::Of(0, 0x7F);
  if (text == "Assigned") return Category("Cn")->Complement();
  if (auto category = Category(text)) return category;
  return FindIn(kUnicodeBinaries, text);
}

}  // namespace kvcache
