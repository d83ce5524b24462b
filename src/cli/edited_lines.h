// The editor of libedit: arrow keys, history, ~/.editrc.
#pragma once

#include <memory>

#include "cli/line_editor.h"

namespace kvcache::cli {

// For standard input, a terminal. Null where the build has no libedit, where standard error is
// no terminal, or where there is no locale with UTF-8.
std::unique_ptr<LineEditor> MakeEditedLines();

}  // namespace kvcache::cli
