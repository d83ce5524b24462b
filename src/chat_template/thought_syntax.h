// The marks around the thoughts of a family of models.
//
// Thread safety: plain data.
#pragma once

#include <string>

namespace kvcache {

struct ThoughtSyntax {
  std::string begin{}, end{};
};

}  // namespace kvcache
