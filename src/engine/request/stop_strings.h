// Finds stop strings in text that arrives in pieces. Text that may begin one is held back.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

class StopStrings {
 public:
  // REQUIRES: no string is empty.
  explicit StopStrings(std::vector<std::string> strings);

  // Takes the next piece and returns the text that cannot belong to a stop string. After a complete
  // stop string, stopped() is true: the text before it was returned, and no more text is.
  std::string Push(std::string_view piece);

  // Returns the text held back, at the end of a text without a stop string.
  std::string Flush();

  bool stopped() const { return stopped_; }
  // Returns the stop string that was found; empty: none.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace kvcache
