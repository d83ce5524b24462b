// Names the mapped file when a read past its new end is fatal.
//
// A file that another process cuts short while it is mapped makes such a read raise SIGBUS. The
// signal cannot be survived; it can be explained.
//
// Thread safety: free functions, from any number of threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvcache {

// Installs a handler for SIGBUS for the whole process, once. If the address lies in a mapped file,
// it writes "kvcache: PATH was cut short while it was in use" to standard error and ends the
// process with status 1. Any other SIGBUS has its default effect. For programs; a library's
// signals belong to whoever links it.
void ReportCutFiles();

// Calls `hook` before a SIGBUS in a mapped file ends the process: a program that changed the
// terminal's modes brings them back. The hook is async-signal-safe. Null: none.
void SetFatalHook(void (*hook)());

// The mapping of a file begins or ends. What exceeds 64 mappings at once is not named.
void AddMappedRange(std::span<const std::byte> bytes, const std::string& path);
void RemoveMappedRange(std::span<const std::byte> bytes);

}  // namespace kvcache
