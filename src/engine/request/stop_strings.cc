#include "engine/request/stop_strings.h"

#include <algorithm>
#include <utility>

namespace kvcache {
namespace {

// Returns the length of the longest end of `text` with which `stop` begins.
std::size_t OverlapAtEnd(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

std::string StopStrings::Push(std::string_view piece) {
  if (stopped_) return {};
  held_.append(piece);
  std::size_t found = std::string::npos;
  std::size_t overlap = 0;
  for (const std::string& stop : strings_) {
    if (const std::size_t at = held_.find(stop); at < found) {
      found = at;
      found_ = stop;
    }
    overlap = std::max(overlap, OverlapAtEnd(held_, stop));
  }
  stopped_ = found != std::string::npos;
  std::string certain = held_.substr(0, stopped_ ? found : held_.size() - overlap);
  held_.erase(0, stopped_ ? held_.size() : certain.size());
  return certain;
}

std::string StopStrings::Flush() {
  return std::exchange(held_, {});
}

}  // namespace kvcache
