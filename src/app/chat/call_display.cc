#include "app/chat/call_display.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "app/terminal/shown_text.h"
#include "app/terminal/terminal.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace kvcache::app {
namespace {

constexpr std::size_t kShortBytes = 500;
constexpr std::size_t kWholeBytes = std::size_t{1} << 16;
constexpr std::size_t kShownLines = 10;
constexpr std::size_t kLineBytes = 200;

void PrintDimmed(const std::string& text) {
  (void)std::fprintf(stderr, "%s\n", Dimmed(Shown(text)).c_str());
}

// Returns the beginning of a text, and how much is missing.
std::string CutTo(std::string_view text, std::size_t max_bytes) {
  const std::string_view kept = BeginningOf(text, max_bytes);
  if (kept.size() == text.size()) return std::string(text);
  return StrCat(kept, "… (", WithThousands(static_cast<std::int64_t>(text.size() - kept.size())),
                " more bytes)");
}

}  // namespace

void ShowCall(const ChatCall& call, CallDetail detail) {
  const std::size_t max_bytes = detail == CallDetail::kWhole ? kWholeBytes : kShortBytes;
  PrintDimmed(StrCat("▸ ", CutTo(call.name, kLineBytes), " ", CutTo(call.arguments, max_bytes)));
}

void ShowResult(const std::string& text) {
  std::string_view rest = text;
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  std::string shown;
  for (std::size_t line = 0; line < kShownLines && !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    shown += StrCat(line == 0 ? "  " : "\n  ", CutTo(rest.substr(0, end), kLineBytes));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto left = std::count(rest.begin(), rest.end(), '\n') + (rest.empty() ? 0 : 1);
  if (left > 0) shown += StrCat("\n  … ", left, left == 1 ? " more line" : " more lines");
  PrintDimmed(shown.empty() ? "  (nothing)" : shown);
}

}  // namespace kvcache::app
