// Passes the JSON of an object on while it is written, so that it can be closed after each piece: keys, numbers and
// words wait until they are whole. So the arguments of a call that a limit cuts off are an object, too.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvcache {

class ClosableJson {
 public:
  // Takes the next piece. Returns what can be passed on; pieces of texts can at once.
  std::string Take(std::string_view piece);
  // Returns what closes the object, and begins anew. What waits is dropped.
  std::string Close();

 private:
  void TakeByte(char c);
  void InString(char c);
  void Open(char c);
  // Everything up to here can be passed on.
  void Pass() { passed_ = held_.size(); }

  std::string held_;        // not passed on yet
  std::size_t passed_ = 0;  // bytes of it that can be
  std::string closers_;     // of what is open and passed on, the outermost first
  bool quoted_ = false;     // inside of a string
  bool key_ = false;        // the next or this string is a key
  bool word_ = false;       // inside of a number or a word
  int escaped_ = 0;         // characters of an escape sequence that are to come
};

}  // namespace kvcache
