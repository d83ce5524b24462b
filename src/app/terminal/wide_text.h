// Converts between UTF-8 and the wide characters of a line editor.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::app {

// Converts UTF-8. NUL, which would end an editor's text, and bytes that are not UTF-8 become
// U+FFFD.
std::wstring ToWide(std::string_view text);

// Converts to UTF-8. Values that are not a character become U+FFFD.
std::string FromWide(std::wstring_view text);

}  // namespace kvcache::app
