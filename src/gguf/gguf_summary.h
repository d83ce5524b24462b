// What lists of models show of a file.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "gguf/gguf.h"

namespace kvcache {

struct GgufSummary {
  std::string family{};               // general.architecture; empty: none
  std::int64_t parameters = 0;        // values of all tensors
  std::int64_t context_length = 0;    // tokens that the model was made for; 0: it is not said
  std::int64_t embedding_length = 0;  // values of a token's state; 0: it is not said
  std::string quantization{};         // as llama.cpp names file types, such as "Q4_K_M"
  std::string digest{};               // 64 lower-case hexadecimal digits
};

// Files up to this size are hashed whole.
inline constexpr std::uint64_t kMaxHashedBytes = std::uint64_t{32} << 20;

// Reads at most 32 MiB of tensors' bytes. The digest is the SHA-256 hash of a file of at most kMaxHashedBytes; of
// a larger one it is that of its size (8 bytes, little-endian), its header, and 64 blocks of 4,096 bytes that
// divide the tensors' bytes evenly. The digest of a split file is that of the digests of its parts. So equal files have equal digests on all machines, at all times.
GgufSummary SummaryOf(const GgufFile& file);

}  // namespace kvcache
