// What happens when a mapped file has no bytes for a read: another process cut it short, or its disk failed.
//
// Such a read raises SIGBUS. Code that needs no clean-up can be left then, and its caller continues. Other code
// cannot: the process ends, and says which file it was.
//
// Thread safety: free functions, from any number of threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvcache {

// Installs a handler for SIGBUS for the whole process, once. A thread inside RunGuarded leaves it. Else, if
// the address lies in a mapped file, the handler writes "kvcache: PATH was cut short while it was in use" to
// standard error and ends the process with status 1. Any other SIGBUS has its default effect. For programs; a
// library's signals belong to whoever links it.
void ReportCutFiles();

// Runs `code`. Returns false if a mapped file had no bytes for one of its reads, or if LeaveGuarded was called:
// `code` was left in the middle. REQUIRES: `code` may be left anywhere, as C without locks may. Without the
// handler above, such a read ends the process.
bool RunGuarded(void (*code)(void*), void* argument);
template <class Code>
bool RunGuarded(const Code& code) {
  return RunGuarded([](void* call) { (*static_cast<const Code*>(call))(); },
                    const_cast<Code*>(&code));
}
// Leaves the innermost RunGuarded of this thread. Returns only if there is none.
void LeaveGuarded();

// Calls `hook` before a SIGBUS in a mapped file ends the process: a program that changed the
// terminal's modes brings them back. The hook is async-signal-safe. Null: none.
void SetFatalHook(void (*hook)());

// The mapping of a file begins or ends. What exceeds 64 mappings at once is not named.
void AddMappedRange(std::span<const std::byte> bytes, const std::string& path);
void RemoveMappedRange(std::span<const std::byte> bytes);

}  // namespace kvcache
