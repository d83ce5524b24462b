// Reads the inputs of `embed` and `rerank`: a text a line.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::app {

enum class LineForm {
  kPlain,  // a line is a text
  kJson,   // a line is a JSON string, or an object with a text under "text"
};

struct InputLine {
  std::string text;
  std::size_t line = 0;  // of the file, from 1; 0: it is no line of one
};

// Reads a file ("-": standard input). Empty lines are left out. Errors: those of ReadTextFile; kInvalidArgument: there is
// no text, or a line is no such JSON, by its number.
Result<std::vector<InputLine>> ReadInputLines(const std::string& path, LineForm form);

}  // namespace kvcache::app
