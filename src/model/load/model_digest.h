// A number that tells models apart: files whose caches must not be mixed up.
//
// It covers all of the file's header (metadata, names, shapes and types of the tensors), and 4 KiB of
// each tensor in 16 places, so that it reads little of the file. Models that were trained apart differ
// in these. It is not a proof that two files are equal: one that changes a few rows of a tensor may
// have the same number. Who keeps bytes for longer than a process should hash the whole file.
//
// Thread safety: free functions, from any number of threads.
#pragma once

#include <cstdint>

#include "gguf/gguf.h"
#include "platform/file_identity.h"

namespace kvcache {

std::uint64_t ModelDigest(const GgufFile& file);

// ModelDigest returns this number for the file of this identity from now on, without a read: the samples are all over
// a file that nothing else may need to read. REQUIRES: the number is that of the file; the identity is not all zeros.
void RememberModelDigest(const FileIdentity& identity, std::uint64_t digest);

}  // namespace kvcache
