#include "tokenizer/token_shape.h"

#include <algorithm>
#include <iterator>

#include "tokenizer/escaped_space.h"
#include "tokenizer/unicode/unicode_class.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

// Bars and square brackets open and close: "]~b]", "[e~[".
constexpr std::string_view kOpening[] = {"<",  "[",  "]",  "{",  "|",  "＜", "［",
                                         "｛", "｜", "【", "〈", "《", "«"};
constexpr std::string_view kClosing[] = {">",  "]",  "[",  "}",  "|",  "＞", "］",
                                         "｝", "｜", "】", "〉", "》", "»"};

// HTML elements whose tags are text in published vocabularies, or could be.
constexpr std::string_view kElements[] = {
    "a",      "abbr",    "address", "article", "aside",  "b",       "big",   "blockquote", "body",
    "br",     "button",  "caption", "center",  "cite",   "code",    "col",   "colgroup",   "dd",
    "del",    "details", "dfn",     "div",     "dl",     "dt",      "em",    "figcaption", "figure",
    "font",   "footer",  "form",    "h1",      "h2",     "h3",      "h4",    "h5",         "h6",
    "head",   "header",  "hr",      "html",    "i",      "iframe",  "img",   "ins",        "kbd",
    "label",  "legend",  "li",      "link",    "main",   "meta",    "nav",   "ol",         "p",
    "pre",    "q",       "s",       "samp",    "script", "section", "small", "span",       "strike",
    "strong", "style",   "sub",     "sup",     "table",  "tbody",   "td",    "tfoot",      "th",
    "thead",  "title",   "tr",      "tt",      "u",      "ul",      "var",
};

bool IsAsciiLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Removes white space and U+2581 from both ends.
std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  for (;;) {
    const std::size_t before = text.size();
    if (text.starts_with(kEscapedSpace)) text.remove_prefix(kEscapedSpace.size());
    if (text.ends_with(kEscapedSpace)) text.remove_suffix(kEscapedSpace.size());
    if (!text.empty() && kSpaces.find(text.front()) != kSpaces.npos) text.remove_prefix(1);
    if (!text.empty() && kSpaces.find(text.back()) != kSpaces.npos) text.remove_suffix(1);
    if (text.size() == before) return text;
  }
}

bool IsHtmlTag(std::string_view text) {
  if (!text.starts_with('<') || !text.ends_with('>')) return false;
  text.remove_prefix(text.starts_with("</") ? 2 : 1);
  text.remove_suffix(text.ends_with(" />") ? 3 : text.ends_with("/>") ? 2 : 1);
  return std::find(std::begin(kElements), std::end(kElements), text) != std::end(kElements);
}

bool IsMarker(std::string_view text) {
  const auto opens = [text](std::string_view bracket) { return text.starts_with(bracket); };
  const auto closes = [text](std::string_view bracket) { return text.ends_with(bracket); };
  const auto* const open = std::find_if(std::begin(kOpening), std::end(kOpening), opens);
  const auto* const close = std::find_if(std::begin(kClosing), std::end(kClosing), closes);
  if (open == std::end(kOpening) || close == std::end(kClosing)) return false;
  if (text.size() <= open->size() + close->size() || IsHtmlTag(text)) return false;
  // Accepts "<|"|>", which has no letter or digit.
  if (text.size() > 4 && text.starts_with("<|") && text.ends_with("|>")) return true;
  const std::string_view inner =
      text.substr(open->size(), text.size() - open->size() - close->size());
  return std::any_of(inner.begin(), inner.end(), [](char c) {
    return IsAsciiLetterOrDigit(c) || static_cast<std::uint8_t>(c) >= 0x80;
  });
}

bool IsWords(std::string_view text) {
  if (!IsValidUtf8(text)) return false;
  // Merging can produce such a token wherever a text has a space, so it is always text.
  if (text.find(kEscapedSpace) != std::string_view::npos) return true;
  constexpr UnicodeClass kWord = kLetter | kNumber | kMark;
  bool words = true;
  bool signs = true;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const Utf8Character c = DecodeUtf8(at);
    const UnicodeClass kind = UnicodeClasses().ClassOf(c.code_point);
    const bool white = (kind & kWhite) != 0;
    const bool word = (kind & kWord) != 0;
    words = words && (white || word);
    signs = signs && (white || (c.code_point < 0x80 && !word));
    at += c.bytes;
  }
  return words || signs;
}

}  // namespace

TokenShape ShapeOf(std::string_view text) {
  if (IsMarker(Stripped(text))) return TokenShape::kMarker;
  return IsWords(text) ? TokenShape::kWords : TokenShape::kText;
}

}  // namespace kvcache
