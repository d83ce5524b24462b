#include "app/chat/answer_view.h"

#include <algorithm>

namespace kvcache::app {

void AnswerView::Watch(GenerateRequest& request, ChatHandlers& handlers) {
  request.on_text = [this](std::string_view text) { return Say(text); };
  handlers.on_thoughts = [this](std::string_view text) {
    progress_.Clear();
    thoughts_.Write(text);
    return true;
  };
}

void AnswerView::End() {
  progress_.Clear();
  thoughts_.End();
  output_.End();
}

bool AnswerView::Say(std::string_view text) {
  if (begin_ == AnswerBegin::kWithoutSpaces && !begun_) {
    text.remove_prefix(std::min(text.find_first_not_of(" \r\n"), text.size()));
    if (text.empty()) return true;
  }
  begun_ = true;
  progress_.Clear();
  thoughts_.End();
  return output_.Write(text);
}

}  // namespace kvcache::app
