#include "json/closable_json.h"

#include <cstring>
#include <utility>

namespace kvcache {

std::string ClosableJson::Take(std::string_view piece) {
  for (const char c : piece) TakeByte(c);
  std::string out = held_.substr(0, passed_);
  held_.erase(0, std::exchange(passed_, 0));
  return out;
}

std::string ClosableJson::Close() {
  std::string out;
  if (quoted_ && !key_) out += '"';
  for (; !closers_.empty(); closers_.pop_back()) out += closers_.back();
  *this = {};
  return out;
}

void ClosableJson::TakeByte(char c) {
  if (quoted_) return InString(c);
  const bool separates = std::strchr(" \t\r\n,:]}", c) != nullptr;
  // A word is whole where something follows it.
  if (word_ && separates) Pass();
  word_ = false;
  held_ += c;
  switch (c) {
    case '{':
    case '[': return Open(c);
    case '}':
    case ']':
      if (!closers_.empty()) closers_.pop_back();
      key_ = false;
      return Pass();
    case '"':
      quoted_ = true;
      if (!key_) Pass();
      return;
    case ',': key_ = !closers_.empty() && closers_.back() == '}'; return;
    case ':': key_ = false; return;
    default: word_ = !separates;
  }
}

void ClosableJson::InString(char c) {
  held_ += c;
  if (escaped_ > 0) {
    --escaped_;
    // The first character says whether four digits follow.
    if (held_[held_.size() - 2] == '\\' && c == 'u') escaped_ = 4;
  } else if (c == '\\') {
    escaped_ = 1;
  } else if (c == '"') {
    quoted_ = false;
  }
  if (!key_ && escaped_ == 0) Pass();
}

void ClosableJson::Open(char c) {
  closers_ += c == '{' ? '}' : ']';
  key_ = c == '{';
  Pass();
}

}  // namespace kvcache
