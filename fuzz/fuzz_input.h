// Splits a fuzzer's input into bytes and texts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace kvcache {

inline void Check(bool holds) {
  if (!holds) std::abort();
}

inline std::uint8_t TakeByte(std::string_view* input) {
  if (input->empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(input->front());
  input->remove_prefix(1);
  return byte;
}

inline std::string TakeText(std::string_view* input, std::size_t length) {
  const std::string text(input->substr(0, length));
  input->remove_prefix(text.size());
  return text;
}

}  // namespace kvcache
