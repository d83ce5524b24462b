// The exit status of a program whose output may be lost.
//
// Thread safety: one thread at a time.
#pragma once

namespace kvcache::app {

// Writes what is left of standard output, and returns the exit status. If it cannot be written, a status of 0
// becomes 1, and one line on standard error, which begins with the program's name, says why. Ends the process by
// SIGPIPE if the reader has gone (`| head`).
int CheckOutput(const char* program, int status);

}  // namespace kvcache::app
