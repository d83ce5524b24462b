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
  std::string_view base;    // other properties, with spaces between
  std::string_view ranges;  // where the property differs from its base, as the tool writes it
};

extern const std::span<const UnicodeProperty> kUnicodeCategories;
extern const std::span<const UnicodeProperty> kUnicodeBinaries;
extern const std::span<const UnicodeProperty> kUnicodeScripts;
extern const std::span<const UnicodeProperty>
    kUnicodeScriptExtensions;  // of scripts that have some

// Returns the code points of what stands between the braces of \p{…}: "L", "Script=Greek", "White_Space"; none:
// ECMA-262 has no such property.
std::optional<CodePointSet> UnicodePropertySet(std::string_view text);

}  // namespace kvcache
