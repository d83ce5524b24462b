#include "app/chat/chat_branches.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "base/utf8.h"

namespace kvcache::app {
namespace {

constexpr std::size_t kShownBytes = 60;

// Returns the beginning of the last message of the user, in one line.
std::string LastQuestion(const Conversation& conversation) {
  std::size_t at = conversation.size();
  while (at > 0 && !conversation.HasRole(at - 1, "user")) --at;
  if (at == 0) return "";
  std::string text = OneLine(conversation.ContentText(at - 1));
  if (text.size() <= kShownBytes) return text;
  return StrCat(BeginningOf(text, kShownBytes), "…");
}

}  // namespace

std::size_t ChatBranches::Keep(const Conversation& conversation) {
  const std::string json = conversation.ToJson();
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (branches_[i].ToJson() == json) return i + 1;
  }
  branches_.push_back(conversation.Copy());
  return branches_.size();
}

void ChatBranches::Swap(std::size_t number, Conversation& conversation) {
  std::swap(branches_[number - 1], conversation);
}

std::string ChatBranches::List() const {
  std::string text;
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    const std::size_t messages = branches_[i].size();
    text += StrCat(i == 0 ? "" : "\n", i + 1, "  ", messages,
                   messages == 1 ? " message   " : " messages  ", LastQuestion(branches_[i]));
  }
  return text;
}

}  // namespace kvcache::app
