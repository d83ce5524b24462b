// Helpers for tests of caches: tokens with known contents, and passes in one line.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache::testing {

// A token of a batch. `content` determines its K and V; equal contents give equal bytes.
struct TestToken {
  int sequence = 0;
  Position position = 0;
  std::uint32_t content = 0;
};

// The tokens of a pass, and the batch indices of its multimodal items.
struct TestBatch {
  std::vector<TestToken> tokens;
  std::vector<int> items{};
  std::vector<int> parents{};  // empty: no drafts
};

// Returns whether the parents, if any, form trees by the rules in kvcache/batch.h.
bool AreTrees(const TestBatch& batch);

// Return the key and value of a token in a layer, as f32, head after head.
std::vector<float> KeyContent(std::uint32_t content, int layer, const KvShape& shape);
std::vector<float> ValueContent(std::uint32_t content, int layer, const KvShape& shape);

Status StartForward(Cache& cache, const std::vector<TestToken>& tokens,
                    ForwardMode mode = ForwardMode::kCompute);
Status StartBatch(Cache& cache, const TestBatch& batch, ForwardMode mode = ForwardMode::kCompute);

// Puts the contents of `tokens`, the batch of the pass in progress, into one layer. The rows have
// gaps between them in memory, like those of a fused QKV product.
Status PutContents(Cache& cache, const std::vector<TestToken>& tokens, int layer,
                   const KvShape& shape);

// Returns `values` numbers in [-1, 1) that `content` determines; all are exact in f16.
std::vector<float> StateContent(std::uint32_t content, int layer, int kind, std::int64_t values);

// Returns a mask as rows of text, one character per cell: '0' visible, '.' hidden, '?' other.
std::vector<std::string> MaskRows(const TensorView& mask);

// Returns the cells of runs by position: "0@4 1@5" is position 0 in cell 4 and position 1 in cell 5.
std::string CellsText(std::span<const HistoryRun> runs);

// Return value `d` of head `head` in column `cell` of a view that Get returned.
float KeyAt(const DenseKv& history, std::int64_t cell, int head, int d);
float ValueAt(const DenseKv& history, bool transposed, std::int64_t cell, int head, int d);

}  // namespace kvcache::testing
