// UTF-8 to the wide characters of an editor and back.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::cli {

// U+FFFD stands for NUL, which would end an editor's text, and for bytes that are no UTF-8.
std::wstring ToWide(std::string_view text);

// U+FFFD stands for what is no character.
std::string FromWide(std::wstring_view text);

}  // namespace kvcache::cli
