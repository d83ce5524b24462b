// A line of input that records which of its bytes were typed and which were pasted.
//
//   /load talk.json      typed "/load ", pasted "talk.json": a command with a pasted argument
//   /save notes.txt      pasted as a whole: text that looks like a command
//
// Thread safety: a value.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvcache::app {

struct TypedLine {
  std::string text;
  bool has_paste = false;
  // Bytes typed before the first paste and after the last one. Without a paste all of the text
  // is typed, and both are unused.
  std::size_t typed_head = 0;
  std::size_t typed_tail = 0;

  void AppendTyped(std::string_view typed);
  void AppendPasted(std::string_view pasted);
  // Records that the text from here on may be pasted.
  void NotePaste();
  // Removes the last `bytes` bytes. REQUIRES: the text has as many.
  void RemoveLast(std::size_t bytes);

  // Return whether the text begins or ends with `mark`, and all of the mark is typed.
  bool BeginsTyped(std::string_view mark) const;
  bool EndsTyped(std::string_view mark) const;

  // Returns whether the line may be a command: it has no paste, or the command's name and the blank
  // behind it are typed.
  bool MayBeCommand() const;
};

// Returns the text of a paste with each line end (CR, LF or CR LF) as '\n'.
std::string PastedText(std::string_view bytes);

}  // namespace kvcache::app
