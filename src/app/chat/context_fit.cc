#include "app/chat/context_fit.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"

namespace kvcache::app {
namespace {

// Shorter texts are tokenized at once: the number of their tokens is the better message.
constexpr std::size_t kCheapBytes = std::size_t{1} << 20;

std::size_t LongestTokenBytes(const Vocabulary& vocabulary) {
  std::size_t longest = 1;
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    longest = std::max(longest, vocabulary.text(token).size());
  }
  return longest;
}

std::size_t BytesWithoutBlanks(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSeparators);
  return begin == std::string_view::npos ? 0 : text.find_last_not_of(kSeparators) + 1 - begin;
}

}  // namespace

Status CheckBytesFit(const Engine& engine, std::string_view text) {
  if (engine.has_encoder()) return Status::Ok();
  const auto context = static_cast<std::size_t>(engine.context());
  const std::size_t bytes = BytesWithoutBlanks(text);
  if (bytes <= kCheapBytes) return Status::Ok();
  const std::size_t max = context * LongestTokenBytes(engine.tokenizer().vocabulary());
  if (bytes <= max) return Status::Ok();
  return InvalidArgument(StrCat(
      "has ", WithThousands(static_cast<std::int64_t>(bytes)), " bytes; the context of ",
      WithThousands(engine.context()), " tokens holds at most ",
      WithThousands(static_cast<std::int64_t>(max)), ": shorten it, or give a larger --ctx"));
}

}  // namespace kvcache::app
