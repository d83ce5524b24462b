#include "app/terminal/notes.h"

#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::app {
namespace {

std::mutex mutex;
bool holds = false;                // guarded by mutex
std::vector<std::string> waiting;  // guarded by mutex

void Print(const std::string& text) {
  (void)std::fprintf(stderr, "kvcache: %s\n", OneLine(text).c_str());
}

}  // namespace

void AddNote(const std::string& text) {
  const std::lock_guard lock(mutex);
  holds ? waiting.push_back(text) : Print(text);
}

void AddDetail(const std::string& text) {
  if (ShowsDetails() && !text.empty()) AddNote(text);
}

bool& ShowsDetails() {
  static bool shows = false;
  return shows;
}

void HoldNotes() {
  const std::lock_guard lock(mutex);
  holds = true;
}

void ShowNotes() {
  const std::lock_guard lock(mutex);
  holds = false;
  for (const std::string& text : std::exchange(waiting, {})) Print(text);
}

}  // namespace kvcache::app
