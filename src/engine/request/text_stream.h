// Turns the tokens of an answer into text: whole characters, without what may begin a stop string.
//
//   tokens ─► pieces of bytes ─► whole characters (Utf8Stream) ─► text before a stop string (StopStrings)
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/stop_strings.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {

// Returns whether decoding drops a space in front of `token` after `before`, a special token.
bool DropsLeadingSpace(const Tokenizer& tokenizer, std::int32_t before, std::int32_t token);

class TextStream {
 public:
  // `tokenizer` must outlive it.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), stops_(std::move(stops)) {}
  // The text continues a special token, and has no space that decoding drops after it.
  void ContinueAfter(std::int32_t special) { before_ = special; }

  // Shows these tokens, which are sorted, with `edge` before and behind each: other text does not have the byte.
  void Show(std::vector<std::int32_t> tokens, char edge) {
    shown_ = std::move(tokens);
    edge_ = edge;
  }

  // Returns the text that a token completes. Throws std::bad_alloc.
  std::string Push(std::int32_t token);
  // Returns the rest, when no token follows. It is empty after a stop string. Throws std::bad_alloc.
  std::string Finish();

  // Returns whether a stop string has come.
  bool stopped() const { return stops_.stopped(); }
  // Returns that stop string.
  const std::string& found() const { return stops_.found(); }

 private:
  const Tokenizer& tokenizer_;
  StopStrings stops_;
  Utf8Stream characters_;
  std::vector<std::int32_t> shown_;
  char edge_ = 0;
  std::int32_t before_ = -1;  // the special token before the first one; -1: none
  std::string piece_;         // scratch: a token's bytes
  std::string whole_;         // scratch: the whole characters that they complete
};

}  // namespace kvcache
