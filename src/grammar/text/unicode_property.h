// The properties of code points that \p{…} of ECMA-262 names.
//
// The tables unicode_data_*.cc are written by tools/make_unicode_properties.mjs.
//
// Thread safety: pure functions and constants.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "grammar/text/code_point_set.h"

namespace kvcache {

struct UnicodeProperty {
  std::string_view names;   // "Lu|Uppercase_Letter"
  std::string_view ranges;  // as the tool writes them
};

extern const std::span<const UnicodeProperty> kUnicodeCategories;
extern const std::span<const UnicodeProperty> kUnicodeBinaries1;
extern const std::span<const UnicodeProperty> kUnicodeBinaries2;
extern const std::span<const UnicodeProperty> kUnicodeScripts;
extern const std::span<const UnicodeProperty> kUnicodeScriptExtensions;

// Returns the code points of what stands between the braces of \p{…}: "L", "Script=Greek", "White_Space"; none:
// ECMA-262 has no such property.
std::optional<CodePointSet> UnicodePropertySet(std::string_view text);

}  // namespace kvcache
