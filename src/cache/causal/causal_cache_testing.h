// The fixture of the causal cache's unit tests: a cache over the reference backend, whose masks and
// cells are read as text.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/causal_cache.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache {

using testing::KeyAt;
using testing::KeyContent;
using testing::MaskRows;
using testing::PutContents;
using testing::ReferenceBackend;
using testing::StartForward;
using testing::TestToken;
using testing::ValueAt;
using testing::ValueContent;
using Rows = std::vector<std::string>;
using Tokens = std::vector<TestToken>;

inline constexpr KvShape kShape{.kv_heads = 2, .k_dim = 4, .v_dim = 3};
inline constexpr float kInvFreq[] = {1.0f, 0.25f};
inline constexpr RopeParams kRope{.dims = 4, .inv_freq = kInvFreq};

inline CacheOptions F32Options(int max_sequences, int capacity, int max_batch = 8) {
  return {DType::kF32, DType::kF32, max_sequences, capacity, max_batch};
}

class CausalCacheTest : public ::testing::Test {
 protected:
  void Open(CacheOptions options, const CacheConfig& config = {}) {
    cache_ = MakeCausalCache(
        {[this](int, const LayerKv& storage, std::span<const CellRun> cells, Position offset) {
          return backend_.ShiftKeys(storage, cells, offset, kRope);
        }});
    options.config = config;
    const Status status = cache_->Init(backend_, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Runs a pass over layer 0. Returns the mask, or the name of the error.
  Rows Forward(const Tokens& tokens) {
    Status status = StartForward(*cache_, tokens);
    if (status.ok()) status = PutContents(*cache_, tokens, 0, kShape);
    if (!status.ok()) return {std::string(StatusCodeName(status.code()))};
    return Mask();
  }

  Rows Mask() {
    auto history = cache_->Get();
    return history.ok() ? MaskRows(history->mask)
                        : Rows{std::string(StatusCodeName(history.status().code()))};
  }

  // The cells of a sequence of the pass, by position: "0@0 1@1" is position 0 in cell 0.
  std::string Cells(int history = 0) {
    return testing::CellsText(cache_->Visible().histories[history]);
  }

  ReferenceBackend backend_;
  std::unique_ptr<Cache> cache_;
};

// Worked tables: '0' is visible, '.' is hidden. A row per token of the batch, a column per cell.

}  // namespace kvcache
