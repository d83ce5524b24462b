// Which bytes of this process are pages of mapped files, so that whoever gets bytes alone can tell them from the heap's.
//
// Thread safety: free functions, from any number of threads.
#pragma once

#include <cstddef>
#include <span>

namespace kvcache {

// The mapping of a file begins or ends (MappedFile). REQUIRES: mappings that exist at once do not overlap.
void NoteMapped(std::span<const std::byte> bytes);
void NoteUnmapped(std::span<const std::byte> bytes);

// Returns whether all bytes lie in one mapped file. No bytes do not.
bool IsInMappedFile(std::span<const std::byte> bytes);

}  // namespace kvcache
