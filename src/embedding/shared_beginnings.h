// The tokens that several inputs begin with, as a tree.
//
//   inputs   a b c d e     a b c x y     a b c d q     z
//   tree     root ─ a b c ─┬─ d ─┬─ (e)
//                 │        │     └─ (q)
//                 │        └─ (x y)
//                 └─ (z)
//
// An inner node holds tokens that at least two inputs share. Its leaves are inputs; a leaf's tokens follow those
// of the node. Tokens are shared where that saves enough of them: a node is a pass of its own, and a pass of few
// tokens costs nearly as much as one of some more.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

struct SharedBeginning {
  std::size_t input = 0;                    // one that begins so
  std::size_t begin = 0, end = 0;           // the node's tokens in that input; all 0: the root
  std::vector<std::size_t> leaves{};        // inputs, in order of their tokens
  std::vector<SharedBeginning> children{};  // in order of their tokens
};

struct SharingLimits {
  std::size_t min_saved_tokens = 64;  // of a node
  int max_depth = 8;                  // of nodes inside each other
};

// Returns the root. Cost: O(n log n) comparisons of inputs. Throws std::bad_alloc.
SharedBeginning FindSharedBeginnings(std::span<const std::vector<std::int32_t>> inputs,
                                     const SharingLimits& limits);

}  // namespace kvcache
