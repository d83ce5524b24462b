// Makes text safe to write to a terminal. A terminal obeys control characters, and characters that
// set the direction of text hide what it says; a model, a file or a template may write both.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::app {

// Converts a text that arrives in pieces, which may be cut anywhere.
class ShownText {
 public:
  // Returns the text to show for the next piece. Newlines and tabs stay, CR LF becomes LF, other
  // control characters (U+0000 to U+001F, U+007F to U+009F) become \xNN as in OneLine, characters
  // that reorder text (U+202A to U+202E, U+2066 to U+2069) become \uNNNN, and bytes that are not
  // UTF-8 become U+FFFD. The beginning of a character is held back until its other bytes arrive.
  std::string Add(std::string_view piece);

  // Ends the text and returns what was held back.
  std::string End();

 private:
  std::string Show(std::string_view text, bool at_end);

  std::string held_;
};

// Returns a whole text as ShownText shows it.
std::string Shown(std::string_view text);

}  // namespace kvcache::app
