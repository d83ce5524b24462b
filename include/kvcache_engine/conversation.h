// A conversation: messages, the tools that the model may call, and variables for the chat template.
// It is read and written as JSON:
//
//   {"version": 1,
//    "messages": [
//     {"role": "user", "content": "…"},
//     …],
//    "tools": […] or null,
//    "variables": {…}}
//
// Messages are objects as in OpenAI's interface: "role", "content", and whatever else the template
// reads ("tool_calls", "reasoning_content", …).
//
// Thread safety: a value.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

struct ChatInput;  // a type of the engine's sources

class Conversation {
 public:
  Conversation();
  ~Conversation();
  Conversation(Conversation&&) noexcept;
  Conversation& operator=(Conversation&&) noexcept;
  Conversation Copy() const;

  // Replaces the messages, and the tools and variables where `json` has them. A bare array of
  // messages is read, too. Errors: kInvalidArgument: what is wrong, and where; kUnsupported: JSON
  // beyond the bounds of nesting and number. The conversation is unchanged then.
  Status ReadJson(std::string_view json);

  // Returns the conversation as JSON, one line for each message: the size of the text follows the
  // size of the messages, however they are nested. Bytes that are not UTF-8 become U+FFFD.
  std::string ToJson() const;

  // The number of messages.
  std::size_t size() const;
  bool empty() const { return size() == 0; }

  // Returns whether message `index` has this role. REQUIRES for all indices: index < size().
  bool HasRole(std::size_t index, std::string_view role) const;

  // Returns the content of message `index` for people: a string as it is, the texts of a list of
  // parts with a newline between two, nothing for none or null, and compact JSON for all else.
  std::string ContentText(std::size_t index) const;

  // Appends a message.
  void Add(std::string_view role, std::string_view content);
  // The same with pictures, which stand before the text. In JSON each is a part {"type": "image", "picture": NAME}.
  void Add(std::string_view role, std::string_view content, std::vector<PicturePtr> pictures);
  // Returns the pictures of all messages, in their order. Errors: kInvalidArgument for one that has only a name, as
  // after ReadJson, with the number of its message.
  Result<std::vector<PicturePtr>> Pictures() const;
  // Appends the result of a call: the call's id, the tool's name, and what the tool returned.
  void AddToolResult(std::string_view id, std::string_view name, std::string_view text);
  // Removes the messages [begin, end). REQUIRES: begin <= end <= size().
  void Remove(std::size_t begin, std::size_t end);
  // Moves the messages from `begin` on into a conversation of their own, without tools and
  // variables. REQUIRES: begin <= size().
  Conversation CutTail(std::size_t begin);
  // Appends the messages of `tail`.
  void Append(Conversation tail);
  // Replaces the system message, which is the first one, or inserts it.
  void SetSystem(std::string_view content);
  bool HasSystem() const { return !empty() && HasRole(0, "system"); }

  // Sets the tools: a JSON array of objects, or one object. Errors as in ReadJson.
  Status SetTools(std::string_view json);
  bool HasTools() const;

  // Sets a variable to `value` if it is JSON, else to `value` as a text. Errors: kUnsupported: JSON
  // beyond the bounds.
  Status SetVariable(const std::string& name, std::string_view value);
  // The names of the variables, in the order in which they were set.
  std::vector<std::string> variables() const;

  // For the engine's own sources, which know the type.
  ChatInput& input() { return *input_; }
  const ChatInput& input() const { return *input_; }

 private:
  std::unique_ptr<ChatInput> input_;  // never null but after a move
  std::vector<PicturePtr> pictures_;  // that messages may name
};

}  // namespace kvcache
