// Finds stop strings in text that arrives in pieces, and holds back what may begin one.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

class StopStrings {
 public:
  // REQUIRES: none of them is empty.
  explicit StopStrings(std::vector<std::string> strings);

  // Takes the next piece and returns the text that is certain not to belong to a stop string.
  // Once one is complete, stopped() is true, the text before it has been returned and nothing
  // more is.
  std::string Push(std::string_view piece);

  // The text held back, at the end of a generation that did not stop here.
  std::string Flush();

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvcache
