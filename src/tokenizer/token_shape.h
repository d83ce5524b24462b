// Classifies user-defined tokens by their texts: markers of a conversation's structure, or text.
//
// GGUF has two types for tokens that are found in a text before merging: control (3) and
// user-defined (4). Published files use type 4 for text (runs of white space, HTML tags) and for
// structure ("<tool_call>" in Qwen 3, "<|channel>" in Gemma 4, "[INST]" and "<|im_start|>" in
// many conversions). Only the text of the token tells which. A marker that is classified as text
// lets a user end a turn. Text that is classified as a marker gets other ids than in llama.cpp,
// which does less harm. So a doubtful token is a marker.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcache {

enum class TokenShape : std::uint8_t {
  kWords,   // "user\n", "```", "\u2581x:": always text
  kText,    // "</table>", "USER:", "\u00A7": text, unless the template writes it
  kMarker,  // "<|user|>", "[INST]", "<｜Assistant｜>", "{name}", "|||EMAIL|||": structure
};

// Returns the shape of a token's text.
//
// A marker begins with an opening bracket or bar and ends with a closing one, with a letter or a
// digit between them, and is not a tag of an HTML element in lower case ("<h1>", "</td>", "<br/>").
// White space and U+2581 around it do not count.
//
// Words consist of letters, digits and white space, or of ASCII punctuation and white space ("```",
// "--": common in programs), or contain U+2581 (merging produces these wherever a text has a
// space).
TokenShape ShapeOf(std::string_view text);

}  // namespace kvcache
