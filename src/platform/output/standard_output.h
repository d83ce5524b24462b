// The end of a program's standard output.
//
// Thread safety: one thread at a time.
#pragma once

#include "kvcache/status.h"

namespace kvcache {

// Writes what stdio holds for standard output. A script that sees status 0 must have everything, so that a program
// calls this last. Returns kIo with the reason if that fails, or if an earlier write failed. `errno` is then EPIPE
// if the reader has gone.
Status FlushStandardOutput();

}  // namespace kvcache
