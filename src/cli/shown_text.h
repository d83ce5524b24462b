// Text that a terminal can be given whatever it holds: a terminal obeys control characters, and
// a model, a file or a template may write them.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::cli {

// Text that comes in pieces, cut anywhere.
class ShownText {
 public:
  // The text to show for the next piece. Newlines and tabs stay, CR LF becomes LF, other control
  // characters (U+0000 to U+001F, U+007F to U+009F) become \xNN as in OneLine, and bytes that
  // are no UTF-8 become U+FFFD. The beginning of a character is held back until the rest comes.
  std::string Add(std::string_view piece);

  // The rest at the end of the text.
  std::string End();

 private:
  std::string Show(std::string_view text, bool at_end);

  std::string held_;
};

// A whole text.
std::string Shown(std::string_view text);

// Bytes of the UTF-8 character that `text` begins with; 0: its bytes are the beginning of one;
// -1: its first byte begins none. REQUIRES: !text.empty().
int CharacterLength(std::string_view text);

}  // namespace kvcache::cli
