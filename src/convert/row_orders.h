// Orders of rows that differ between Hugging Face's models and GGUF files.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>

namespace kvcache {

// Returns the row of the two halves of a head for a row of neighbours: Hugging Face rotates pairs from the halves,
// llama's files rotate neighbours.
inline std::int64_t HalvesRow(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t at = row % head_dim;
  return row - at + at % 2 * (head_dim / 2) + at / 2;
}

// The rows of qwen3next's in_proj_qkvz: q, k, v and z of one key head after another. The file has all of q, k and v in
// one matrix and z in another.
struct DeltaRows {
  std::int64_t k_dim = 0, v_dim = 0;
  std::int64_t groups = 0;  // key heads
  std::int64_t heads = 0;   // value heads

  std::int64_t values() const { return heads / groups * v_dim; }  // of a group
  std::int64_t block() const { return 2 * k_dim + 2 * values(); }
  std::int64_t channels() const { return 2 * groups * k_dim + heads * v_dim; }
  std::int64_t inner() const { return heads * v_dim; }

  // Returns the row of in_proj_qkvz for a row of q, k and v.
  std::int64_t QkvRow(std::int64_t row) const {
    const std::int64_t keys = groups * k_dim;
    if (row < keys) return row / k_dim * block() + row % k_dim;
    row -= keys;
    if (row < keys) return row / k_dim * block() + k_dim + row % k_dim;
    row -= keys;
    return row / values() * block() + 2 * k_dim + row % values();
  }
  // The same for a row of z.
  std::int64_t ZRow(std::int64_t row) const {
    return row / values() * block() + 2 * k_dim + values() + row % values();
  }
};

}  // namespace kvcache
