// Conversations that contain foreign text at numbered places, and templates that render them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "chat_template/chat_template.h"

namespace kvcache {

// Returns the text of a place by its number. Neighbouring places have consecutive numbers.
using Text = std::function<std::string(int)>;

struct Talk {
  const char* name;
  std::function<ChatInput(const Text& text)> make;
};

// Returns conversations that cover every place of foreign text: contents, roles, names, calls,
// reasoning, parts, tools, documents and variables, keys as well as values.
const std::vector<Talk>& Talks();

// Returns templates by name: the files of this folder, and three that render what those do not.
std::map<std::string, std::string> Sources();

}  // namespace kvcache
