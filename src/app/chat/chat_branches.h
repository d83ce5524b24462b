// The branches of a chat: conversations that /undo, /edit and /fork left, to come back to.
//
// Thread safety: a value.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kvcache_engine/conversation.h"

namespace kvcache::app {

class ChatBranches {
 public:
  // Keeps a copy of the conversation and returns its number, from 1. One that is already kept is not
  // kept again.
  std::size_t Keep(const Conversation& conversation);
  std::size_t size() const { return branches_.size(); }
  // Exchanges the conversation with branch `number`. REQUIRES: 1 <= number <= size().
  void Swap(std::size_t number, Conversation& conversation);
  // Returns a line for each branch: its number, its messages and the beginning of the last one that
  // the user wrote.
  std::string List() const;

 private:
  std::vector<Conversation> branches_;
};

}  // namespace kvcache::app
