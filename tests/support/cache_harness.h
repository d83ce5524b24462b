// What tests of caches need around one: tokens with known contents, and passes in one line.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache::testing {

// A token of a batch. `content` decides its K and V; equal contents give equal bytes.
struct TestToken {
  int sequence = 0;
  Position position = 0;
  std::uint32_t content = 0;
};

// The tokens of a pass, and at which of them multimodal items begin.
struct TestBatch {
  std::vector<TestToken> tokens;
  std::vector<int> items{};
  std::vector<int> parents{};  // empty: no drafts
};

// Do the parents, if any, make trees, as kvcache/cache.h says?
bool AreTrees(const TestBatch& batch);

// The key and value that a token has in a layer, as f32, all heads after one another.
std::vector<float> KeyContent(std::uint32_t content, int layer, const KvShape& shape);
std::vector<float> ValueContent(std::uint32_t content, int layer, const KvShape& shape);

Status StartForward(Cache& cache, const std::vector<TestToken>& tokens,
                    ForwardMode mode = ForwardMode::kCompute);
Status StartBatch(Cache& cache, const TestBatch& batch, ForwardMode mode = ForwardMode::kCompute);

// Puts the contents of `tokens`, the batch of the pass in progress, into one layer. The rows
// lie apart in memory, as those of a fused QKV product do.
Status PutContents(Cache& cache, const std::vector<TestToken>& tokens, int layer,
                   const KvShape& shape);

// `values` numbers in [-1, 1) that `content` decides, alike in f16 and f32.
std::vector<float> StateContent(std::uint32_t content, int layer, int kind, std::int64_t values);

// A mask as rows of text, one character a cell: '0' visible, '.' hidden, '?' anything else.
std::vector<std::string> MaskRows(const TensorView& mask);

// Value `d` of head `head` in column `cell` of a view that Get returned.
float KeyAt(const DenseKv& history, std::int64_t cell, int head, int d);
float ValueAt(const DenseKv& history, bool transposed, std::int64_t cell, int head, int d);

}  // namespace kvcache::testing
