// Counts allocations: after warm-up, a pass makes none.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/recurrent_cache.h"
#include "support/cache_harness.h"
#include "support/counting_new.h"
#include "support/reference_backend.h"

namespace kvcache::allocation_test {
namespace {

// Writes nothing, so that only the cache's allocations are counted.
class SilentBackend : public testing::ReferenceBackend {
 public:
  Status StoreKv(const LayerKv&, const TensorView&, const TensorView&,
                 std::span<const CellRun>) override {
    return Status::Ok();
  }
  Status CopyCells(const LayerKv&, std::span<const CellMove>) override { return Status::Ok(); }
};

std::unique_ptr<Cache> Opened(KvBackend& backend, int sequences, int capacity, int max_batch) {
  auto cache = MakeCausalCache();
  EXPECT_TRUE(
      cache->Init(backend, {DType::kF16, DType::kF16, sequences, capacity, max_batch}).ok());
  return cache;
}

// A batch's metadata and K, made outside the counted code; V is K.
struct Inputs {
  std::vector<Position> positions;
  std::vector<SequenceId> sequences;
  std::vector<float> k;
  TensorView view;

  Inputs(int tokens, int sequence) : k(4 * tokens) {
    for (int i = 0; i < tokens; ++i) sequences.push_back(SequenceId{sequence});
    positions.resize(tokens);
    view = TensorView::Dense(k.data(), DType::kF32, 4, 1, tokens);
  }
  Batch batch() const { return {positions, sequences}; }
};

TEST(AllocationTest, DecodeStepAllocatesNothing) {
  SilentBackend backend;
  auto cache = Opened(backend, 3, 256, 4);
  Inputs inputs(3, 0);
  inputs.sequences = {SequenceId{0}, SequenceId{1}, SequenceId{2}};
  // The first step allocates the layer and Get's mask.
  for (Position position = 0; position < 256; ++position) {
    inputs.positions.assign(3, position);
    const std::int64_t before = testing::AllocationCount();
    ASSERT_TRUE(cache->StartForward(inputs.batch(), ForwardMode::kCompute).ok());
    ASSERT_TRUE(cache->Put(inputs.view, inputs.view).ok());
    const bool seen = cache->Visible().positions.size() == 3 && cache->Storage().ok();
    const std::int64_t made = testing::AllocationCount() - before;
    ASSERT_TRUE(seen);
    if (position > 0) {
      ASSERT_EQ(made, 0) << "at position " << position;
    } else {
      ASSERT_GT(made, 0) << "the counter counts";
    }
  }
}

TEST(AllocationTest, AfterAReservePassNothingAllocatesAtAll) {
  SilentBackend backend;
  auto cache = Opened(backend, 2, 64, 32);
  Inputs worst(32, 0);
  ASSERT_TRUE(cache->StartForward(worst.batch(), ForwardMode::kReserve).ok());
  ASSERT_TRUE(cache->Put(worst.view, worst.view).ok());
  ASSERT_TRUE(cache->Get().ok());
  Inputs prefill(32, 1);
  for (int i = 0; i < 32; ++i) prefill.positions[i] = 31 - i;  // descending: the cache sorts them
  Inputs decode(1, 1);
  decode.positions = {32};
  const std::int64_t before = testing::AllocationCount();
  bool ok = true;
  for (const Inputs* inputs : {&prefill, &decode}) {
    ok = ok && cache->StartForward(inputs->batch(), ForwardMode::kCompute).ok();
    ok = ok && cache->Put(inputs->view, inputs->view).ok() && cache->Get().ok();
  }
  const std::int64_t made = testing::AllocationCount() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(made, 0);
}

// Eight drafts in three paths, of which two tokens are accepted in each round.
TEST(AllocationTest, DraftsReuseTheirMemory) {
  SilentBackend backend;
  auto cache = Opened(backend, 2, 256, 8);
  Inputs drafts(8, 0);
  const std::vector<std::int32_t> parents = {-1, -1, 0, 1, 1, 2, 3, 4};
  const std::vector<std::int32_t> last = {4};
  const auto round = [&](Position length) {
    for (std::size_t i = 0; i < parents.size(); ++i) {
      drafts.positions[i] = parents[i] < 0 ? length : drafts.positions[parents[i]] + 1;
    }
    const Batch batch{.positions = drafts.positions,
                      .sequences = drafts.sequences,
                      .items = {},
                      .parents = parents};
    return cache->StartForward(batch, ForwardMode::kCompute).ok() &&
           cache->Put(drafts.view, drafts.view).ok() && cache->AcceptDrafts(last).ok();
  };
  bool ok = round(0) && round(2);
  const std::int64_t before = testing::AllocationCount();
  for (Position length = 4; length < 240; length += 2) ok = ok && round(length);
  const std::int64_t made = testing::AllocationCount() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(made, 0);
}

// Two recurrent layers: four drafts in two paths, of which two tokens are accepted in each round.
TEST(AllocationTest, RecurrentDraftsReuseTheirMemory) {
  SilentBackend backend;
  const auto replay = [](const DraftReplay&) { return Status::Ok(); };
  const std::vector<int> layers = {0, 3};
  auto cache = MakeRecurrentCache({.layers = layers,
                                   .conv_dim = 2,
                                   .conv_channels = 3,
                                   .state_size = 8,
                                   .checkpoints = {.count = 0},
                                   .replay_drafts = replay,
                                   .draft_inputs = 5});
  ASSERT_TRUE(cache->Init(backend, {DType::kF32, DType::kF32, 1, 256, 4}).ok());
  Inputs drafts(4, 0);
  const std::vector<std::int32_t> parents = {-1, 0, 0, 2};
  const std::vector<std::int32_t> last = {2};
  const auto round = [&](Position length) {
    for (std::size_t i = 0; i < parents.size(); ++i) {
      drafts.positions[i] = parents[i] < 0 ? length : drafts.positions[parents[i]] + 1;
    }
    const Batch batch{.positions = drafts.positions,
                      .sequences = drafts.sequences,
                      .items = {},
                      .parents = parents};
    bool ok = cache->StartForward(batch, ForwardMode::kCompute).ok();
    for (const int layer : layers) {
      for (const StateKind kind : {StateKind::kConvolution, StateKind::kRecurrent}) {
        ok = ok && cache->Segments(layer, kind).ok() && cache->DraftInputs(layer).ok() &&
             cache->MarkWritten(layer, kind).ok();
      }
    }
    return ok && cache->AcceptDrafts(last).ok();
  };
  bool ok = round(0) && round(2) && round(4);
  const std::int64_t before = testing::AllocationCount();
  for (Position length = 6; length < 200; length += 2) ok = ok && round(length);
  const std::int64_t made = testing::AllocationCount() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(made, 0);
}

TEST(AllocationTest, RewindingAndSharingReuseTheirMemory) {
  SilentBackend backend;
  auto cache = Opened(backend, 2, 64, 1);
  Inputs decode(1, 0);
  const auto step = [&](int sequence, Position position) {
    decode.sequences = {SequenceId{sequence}};
    decode.positions = {position};
    return cache->StartForward(decode.batch(), ForwardMode::kCompute).ok() &&
           cache->Put(decode.view, decode.view).ok();
  };
  bool ok = step(0, 0) && step(0, 1);
  const std::int64_t before = testing::AllocationCount();
  for (int round = 0; round < 100; ++round) {
    ok = ok && cache->CopyPrefix(SequenceId{0}, SequenceId{1}, 2).ok() && step(1, 2);
    ok = ok && cache->Remove(SequenceId{1}, 1, kEndOfSequence).ok() && step(1, 1);
  }
  const std::int64_t made = testing::AllocationCount() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(made, 0);
}

}  // namespace
}  // namespace kvcache::allocation_test
