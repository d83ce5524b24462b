// The line editor of libedit: arrow keys, history, ~/.editrc.
#pragma once

#include <memory>

#include "app/terminal/line_editor.h"

namespace kvcache::app {

// Returns an editor for standard input, which is a terminal; null if the build has no libedit,
// standard error is not a terminal, or there is no locale with UTF-8.
std::unique_ptr<LineEditor> MakeEditedLines();

}  // namespace kvcache::app
