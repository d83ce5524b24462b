// Reads an answer of a chat while it is generated: passes on what the model thinks and says, and keeps all of it.
//
// Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/answer_parser.h"
#include "kvcache_engine/chat.h"

namespace kvcache {

class ChatAnswer {
 public:
  using OnText = std::function<bool(std::string_view)>;

  // Either function may be empty. One that returns false ends the answer, and neither is called again.
  ChatAnswer(AnswerSyntax syntax, OnText on_text, OnText on_thoughts)
      : parser_(std::move(syntax)),
        on_text_(std::move(on_text)),
        on_thoughts_(std::move(on_thoughts)) {}

  // Takes the next piece of the text, with edges (dialect.h). Returns whether the answer continues.
  bool Push(std::string_view piece);
  // Takes the end. Returns as Push.
  bool Finish();

  // What was read: the text that the model said, its thoughts.
  const std::string& text() const { return text_; }
  const std::string& thoughts() const { return thoughts_; }
  // Adds the answer to the messages, with `content` as its text. Returns its calls, with ids.
  std::vector<ChatCall> AddTo(nlohmann::ordered_json& messages, std::string content) const;

 private:
  bool Take(const std::vector<AnswerPart>& parts);
  void Pass(const OnText& to, std::string_view text);

  AnswerParser parser_;
  OnText on_text_;
  OnText on_thoughts_;
  std::string text_;
  std::string thoughts_;
  std::vector<ToolCall> calls_;
  bool refused_ = false;
};

}  // namespace kvcache
