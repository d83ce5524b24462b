// Conversations that bring text in at numbered places, and templates that write them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "chat_template/chat_template.h"

namespace kvcache {

// Text of a place by its number. Places side by side have numbers side by side.
using Text = std::function<std::string(int)>;

struct Talk {
  const char* name;
  ChatInput (*make)(const Text& text);
};

// Every place where text comes in: contents, roles, names, calls, reasoning, parts, tools,
// documents and variables, keys as well as values.
const std::vector<Talk>& Talks();

// Templates by name: the files of this folder, and three that write what those leave out.
std::map<std::string, std::string> Sources();

}  // namespace kvcache
