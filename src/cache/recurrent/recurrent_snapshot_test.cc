// Snapshots of recurrent caches over the processor's kernels: the same bits after every way out and
// back, and captures inside a batch. Random scripts of all calls are in tests/model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/recurrent_cache.h"

namespace kvcache::recurrent_snapshot_test {
namespace {

constexpr int kDim = 16;       // of keys and values, in the attention and in the states
constexpr int kHeads = 2;      // of the states
constexpr int kSteps = 4;      // of the convolution
constexpr int kLength = 60;    // of the prompt
constexpr int kChannels = 24;  // of the convolution
constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
const std::vector<int> kLayers = {1, 3};

using Bytes = std::vector<std::byte>;

TensorView Columns(const std::vector<float>& values, std::int64_t dim, Position first,
                   std::int64_t count) {
  return TensorView::Dense(values.data() + first * dim, DType::kF32, dim, count);
}

// One prompt of random inputs. A pass of positions [begin, end) runs a convolution and a scan in both
// recurrent layers, and stores keys and values in layer 0.
class RecurrentSnapshotTest : public ::testing::Test {
 protected:
  RecurrentSnapshotTest() {
    for (auto* values : {&conv_, &keys_, &values_, &decays_, &steps_, &taps_}) {
      for (float& x : *values) x = uniform_(random_);
    }
  }

  static RecurrentOptions Options() {
    return {.layers = kLayers,
            .conv_dim = kSteps - 1,
            .conv_channels = kChannels,
            .state_size = std::int64_t{kDim} * kDim * kHeads,
            .checkpoints = {.count = 0},
            .attention = {.keys_identity = "model x"}};
  }
  std::unique_ptr<RecurrentCache> Open(RecurrentOptions options = Options(), int sequences = 3,
                                       int capacity = 200) {
    auto cache = MakeRecurrentCache(std::move(options));
    const Status status =
        cache->Init(*backend_, {DType::kF16, DType::kF16, sequences, capacity, 64});
    EXPECT_TRUE(status.ok()) << status.message();
    return cache;
  }

  Status Forward(RecurrentCache& cache, SequenceId id, Position begin, Position end) {
    KVCACHE_RETURN_IF_ERROR(Start(cache, id, begin, end));
    return RunLayers(cache, begin, end);
  }
  Status Start(RecurrentCache& cache, SequenceId id, Position begin, Position end) {
    batch_.Clear();
    batch_.Add(id, begin, end - begin);
    return cache.StartForward(batch_.view(), ForwardMode::kCompute);
  }
  Status RunLayers(RecurrentCache& cache, Position begin, Position end) {
    const std::int64_t count = end - begin;
    const auto rows = [&](const std::vector<float>& values, std::int64_t heads) {
      return TensorView::Dense(values.data() + begin * heads * kDim, DType::kF32, kDim, heads,
                               count);
    };
    cache.SetLayer(0);
    KVCACHE_RETURN_IF_ERROR(cache.Put(rows(keys_, 1), rows(values_, 1)));
    for (const int layer : kLayers) {
      KVCACHE_ASSIGN_OR_RETURN(const StateSegments conv,
                               cache.Segments(layer, StateKind::kConvolution));
      std::vector<float> y(count * kChannels);
      const ConvTaps taps{TensorView::Dense(taps_.data() + layer, DType::kF32, kSteps, kChannels)};
      KVCACHE_RETURN_IF_ERROR(backend_->ShortConv(Columns(conv_, kChannels, begin, count), taps,
                                                  conv, Columns(y, kChannels, 0, count)));
      KVCACHE_RETURN_IF_ERROR(cache.MarkWritten(layer, StateKind::kConvolution));
      KVCACHE_ASSIGN_OR_RETURN(const StateSegments scan,
                               cache.Segments(layer, StateKind::kRecurrent));
      std::vector<float> out(count * kHeads * kDim);
      const ScanInputs inputs{.keys = rows(keys_, 1),
                              .queries = rows(keys_, 1),
                              .values = rows(values_, kHeads),
                              .decays = Columns(decays_, kHeads, begin, count),
                              .steps = Columns(steps_, kHeads, begin, count)};
      KVCACHE_RETURN_IF_ERROR(
          backend_->StateScan(inputs, {.rule = ScanRule::kDelta}, scan,
                              TensorView::Dense(out.data(), DType::kF32, kDim, kHeads, count)));
      KVCACHE_RETURN_IF_ERROR(cache.MarkWritten(layer, StateKind::kRecurrent));
    }
    return Status::Ok();
  }

  static Bytes Export(RecurrentCache& cache, const Snapshot& snapshot) {
    Bytes bytes(static_cast<std::size_t>(*cache.snapshots()->ExportSize(snapshot)));
    const Status status = cache.snapshots()->Export(snapshot, bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    return bytes;
  }
  static Bytes ExportRange(RecurrentCache& cache, SequenceId id, Position begin, Position end) {
    auto snapshot = cache.snapshots()->TakeSnapshot(id, begin, end);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
    return snapshot.ok() ? Export(cache, **snapshot) : Bytes();
  }
  // Returns the bytes of positions [begin, end) and of the state after them, evaluated token by
  // token.
  Bytes Stepwise(Position begin, Position end) {
    auto cache = Open();
    for (Position p = 0; p < end; ++p) EXPECT_TRUE(Forward(*cache, kFirst, p, p + 1).ok());
    return ExportRange(*cache, kFirst, begin, end);
  }

  std::mt19937 random_{7};
  std::uniform_real_distribution<float> uniform_{0.1f, 0.9f};
  std::vector<float> conv_ = std::vector<float>(kLength * kChannels);
  std::vector<float> keys_ = std::vector<float>(kLength * kDim);
  std::vector<float> values_ = std::vector<float>(kLength * kDim * kHeads);
  std::vector<float> decays_ = std::vector<float>(kLength * kHeads);
  std::vector<float> steps_ = std::vector<float>(kLength * kHeads);
  std::vector<float> taps_ = std::vector<float>(kSteps * kChannels + 4);
  BatchBuilder batch_;
  std::unique_ptr<Backend> backend_ = *MakeCpuBackend({.threads = 2});
};

TEST_F(RecurrentSnapshotTest, TheSameBitsLazyMaterialisedAndRestored) {
  auto cache = Open();
  std::int64_t hooked = 0;
  cache->snapshots()->SetMaterializeHook([&](std::int64_t bytes) { hooked += bytes; });
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 33).ok());
  auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, 33);
  ASSERT_TRUE(snapshot.ok());
  const Bytes bytes = Export(*cache, **snapshot);
  EXPECT_EQ(bytes, Stepwise(0, 33));
  EXPECT_EQ((*snapshot)->HeldBytes(), 0);
  EXPECT_EQ((*snapshot)->HeldCells(), 34) << "33 tokens and a state";
  ASSERT_TRUE(cache->snapshots()->Materialize(**snapshot).ok());
  EXPECT_EQ((*snapshot)->HeldCells(), 0);
  EXPECT_EQ((*snapshot)->HeldBytes(), hooked);
  EXPECT_EQ(cache->snapshots()->SnapshotBytes(), hooked);
  EXPECT_EQ(Export(*cache, **snapshot), bytes);
  ASSERT_TRUE(cache->Remove(kFirst, 0, kEndOfSequence).ok());
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 20).ok());  // other states in the old cells
  ASSERT_TRUE(cache->snapshots()->Restore(kSecond, snapshot->get(), 33).ok());
  EXPECT_EQ(ExportRange(*cache, kSecond, 0, 33), bytes);
  ASSERT_TRUE(Forward(*cache, kSecond, 33, 50).ok());
  EXPECT_EQ(ExportRange(*cache, kSecond, 0, 50), Stepwise(0, 50));
  snapshot->reset();
  EXPECT_EQ(hooked, 0);
}

TEST_F(RecurrentSnapshotTest, CapturesInsideABatchHaveTheBitsOfStepwiseEvaluation) {
  auto cache = Open();
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 5).ok());
  ASSERT_TRUE(cache->snapshots()
                  ->ScheduleCaptures(kFirst, 5, std::vector<Position>{5, 6, 17, 40, 99})
                  .ok());
  ASSERT_TRUE(Start(*cache, kFirst, 5, 40).ok());
  EXPECT_EQ(cache->TokensPerSequence(), 0);
  EXPECT_EQ(cache->ConvState(1).status().message(),
            "a view of the states of a batch with a capture inside; use RecurrentCache::Segments");
  EXPECT_EQ(cache->Segments(1, StateKind::kRecurrent)->segments.size(), 3u);
  ASSERT_TRUE(RunLayers(*cache, 5, 40).ok());
  auto captures = cache->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(captures.ok());
  ASSERT_EQ(captures->size(), 5u);
  EXPECT_EQ((*captures)[4], nullptr);
  const Position begins[] = {5, 5, 6, 17};
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE((*captures)[i], nullptr);
    EXPECT_EQ((*captures)[i]->begin(), begins[i]);
    EXPECT_EQ(Export(*cache, *(*captures)[i]), Stepwise(begins[i], (*captures)[i]->end())) << i;
  }
  EXPECT_EQ(ExportRange(*cache, kFirst, 0, 40), Stepwise(0, 40));
  auto joined = cache->snapshots()->MergeSnapshots((*captures)[1], (*captures)[2]);
  ASSERT_TRUE(joined.ok());
  ASSERT_TRUE(cache->CopyPrefix(kFirst, kSecond, 5).ok());
  ASSERT_TRUE(cache->snapshots()->Restore(kSecond, joined->get(), 17).ok());
  EXPECT_EQ(ExportRange(*cache, kSecond, 0, 17), Stepwise(0, 17));
}

TEST_F(RecurrentSnapshotTest, ACaptureAtTheEndNeedsNoDivision) {
  auto cache = Open();
  ASSERT_TRUE(cache->snapshots()->ScheduleCaptures(kFirst, 0, std::vector<Position>{12}).ok());
  ASSERT_TRUE(Start(*cache, kFirst, 0, 12).ok());
  EXPECT_EQ(cache->TokensPerSequence(), 12);
  EXPECT_TRUE(cache->ConvState(1).ok());
  EXPECT_EQ(cache->Segments(1, StateKind::kRecurrent)->segments.size(), 1u);
  ASSERT_TRUE(RunLayers(*cache, 0, 12).ok());
  auto captures = cache->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(captures.ok());
  ASSERT_NE(captures->front(), nullptr);
  EXPECT_EQ(Export(*cache, *captures->front()), Stepwise(0, 12));
}

TEST_F(RecurrentSnapshotTest, APassThatBreaksOffLeavesNoCapture) {
  auto cache = Open();
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 5).ok());
  ASSERT_TRUE(cache->snapshots()->ScheduleCaptures(kFirst, 5, std::vector<Position>{8, 12}).ok());
  ASSERT_TRUE(Start(*cache, kFirst, 5, 12).ok());
  EXPECT_EQ(
      cache->snapshots()->TakeSnapshot(kFirst, 0, 12).status().message(),
      "a snapshot at 12 of sequence 0, whose nearest recurrent state below is after 5 tokens");
  ASSERT_TRUE(cache->snapshots()->Restore(kFirst, nullptr, 5).ok())
      << "schedules the captures again";
  ASSERT_TRUE(Forward(*cache, kFirst, 5, 10).ok());
  ASSERT_TRUE(Start(*cache, kFirst, 10, 14).ok());
  auto captures = cache->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(captures.ok());
  ASSERT_NE(captures->front(), nullptr);
  EXPECT_EQ(Export(*cache, *captures->front()), Stepwise(5, 8));
  EXPECT_EQ(captures->back(), nullptr);
}

TEST_F(RecurrentSnapshotTest, TooManyCapturesInsideABatch) {
  RecurrentOptions options = Options();
  options.snapshot_states = 1;
  auto cache = Open(options);
  ASSERT_TRUE(cache->snapshots()->ScheduleCaptures(kFirst, 0, std::vector<Position>{3, 6}).ok());
  const Status status = Start(*cache, kFirst, 0, 12);
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(),
            "2 captures lie inside the batch; RecurrentOptions::snapshot_states is 1; divide the "
            "batch, or cancel captures");
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 6).ok());
  auto captures = cache->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(captures.ok());
  EXPECT_EQ(Export(*cache, *captures->front()), Stepwise(0, 3));
  EXPECT_EQ(Export(*cache, *captures->back()), Stepwise(3, 6));
}

// Without cells for snapshots, a pass materialises the oldest ones, and only as many as it needs.
TEST_F(RecurrentSnapshotTest, MaterialisesTheOldestUnderPressure) {
  RecurrentOptions options = Options();
  options.snapshot_states = 0;
  auto cache = Open(options, 1);
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (Position p = 0; p < 8; ++p) {
    ASSERT_TRUE(Forward(*cache, kFirst, p, p + 1).ok());
    auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, p + 1);
    ASSERT_TRUE(snapshot.ok());
    snapshots.push_back(std::move(*snapshot));
  }
  // Cells of states: the zeros, the sequence's two, one for a pass and one for a restore.
  const std::int64_t bytes = snapshots.front()->HeldBytes();
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(cache->snapshots()->SnapshotBytes(), 4 * bytes);
  for (Position p = 0; p < 8; ++p) {
    EXPECT_EQ(snapshots[p]->HeldBytes(), p < 4 ? bytes : 0) << p;
    EXPECT_EQ(Export(*cache, *snapshots[p]), Stepwise(0, p + 1));
  }
}

TEST_F(RecurrentSnapshotTest, AStateThatFreesNoCellStaysLazy) {
  RecurrentOptions options = Options();
  options.snapshot_states = 0;
  auto cache = Open(options, 2);
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 3).ok());
  auto oldest = cache->snapshots()->TakeSnapshot(kFirst, 0, 3);  // the sequence has the state, too
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (Position p = 0; p < 10; ++p) {
    ASSERT_TRUE(Forward(*cache, kSecond, p, p + 1).ok());
    auto snapshot = cache->snapshots()->TakeSnapshot(kSecond, 0, p + 1);
    ASSERT_TRUE(snapshot.ok());
    snapshots.push_back(std::move(*snapshot));
  }
  EXPECT_EQ((*oldest)->HeldBytes(), 0);
  EXPECT_GT(snapshots.front()->HeldBytes(), 0);
}

TEST_F(RecurrentSnapshotTest, MovesToACacheOfOtherSizes) {
  auto cache = Open();
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 21).ok());
  const Bytes bytes = ExportRange(*cache, kFirst, 0, 21);
  RecurrentOptions options = Options();
  options.snapshot_states = 0;
  options.checkpoints = {.count = 2};
  auto other = Open(options, 2, 90);
  auto imported = other->snapshots()->Import(bytes);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(Export(*other, **imported), bytes);
  ASSERT_TRUE(other->snapshots()->Restore(kSecond, imported->get(), 21).ok());
  ASSERT_TRUE(Forward(*other, kSecond, 21, 37).ok());
  EXPECT_EQ(ExportRange(*other, kSecond, 0, 37), Stepwise(0, 37));
}

TEST_F(RecurrentSnapshotTest, RefusesForeignAndDamagedBytes) {
  auto cache = Open();
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 9).ok());
  Bytes bytes = ExportRange(*cache, kFirst, 0, 9);
  RecurrentOptions options = Options();
  options.conv_channels = kChannels + 1;
  auto other = Open(options);
  const Status foreign = other->snapshots()->Import(bytes).status();
  EXPECT_EQ(foreign.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"layers 1 3, convolution 3 x 24, state 512", "3 x 25", "model x"}) {
    EXPECT_NE(foreign.message().find(part), std::string::npos) << foreign.message();
  }
  for (std::size_t size = 0; size < bytes.size(); size += size < 400 ? 1 : 64) {
    EXPECT_FALSE(cache->snapshots()->Import(std::span(bytes).first(size)).ok()) << size;
  }
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  std::uint64_t inner = 0;  // the header of the attention's snapshot
  std::memcpy(&inner, bytes.data() + header + 8, sizeof(inner));
  for (std::size_t i = 0; i < header + inner; ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_FALSE(cache->snapshots()->Import(bytes).ok()) << i;
    bytes[i] ^= std::byte{1};
  }
  EXPECT_TRUE(cache->snapshots()->Import(bytes).ok());
}

TEST_F(RecurrentSnapshotTest, OnlyTheLengthOfTheState) {
  auto cache = Open();
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 9).ok());
  ASSERT_TRUE(Forward(*cache, kFirst, 9, 15).ok());
  EXPECT_EQ(
      cache->snapshots()->TakeSnapshot(kFirst, 0, 12).status().message(),
      "a snapshot at 12 of sequence 0, whose nearest recurrent state below is after 9 tokens");
  auto earlier = cache->snapshots()->TakeSnapshot(kFirst, 0, 9);
  ASSERT_TRUE(earlier.ok());
  EXPECT_EQ(Export(*cache, **earlier), Stepwise(0, 9)) << "the state before the last pass";
  auto later = cache->snapshots()->TakeSnapshot(kFirst, 9, 15);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(cache->snapshots()->TakeSnapshot(kFirst, 0, 0)->get(), nullptr);
  EXPECT_EQ(cache->snapshots()->Restore(kSecond, earlier->get(), 8).message(),
            "restoring sequence 1 to 8 tokens; the snapshot's recurrent state is after 9, and "
            "restores at no other length");
  EXPECT_EQ(cache->snapshots()->Restore(kSecond, later->get(), 15).code(),
            StatusCode::kUnsupported);
  ASSERT_TRUE(cache->snapshots()->Restore(kSecond, earlier->get(), 9).ok());
  ASSERT_TRUE(cache->snapshots()->Restore(kSecond, later->get(), 15).ok());
  EXPECT_EQ(cache->snapshots()->Restore(kSecond, nullptr, 12).message(),
            "sequence 1 has no recurrent state after 12 tokens; the nearest below is after 0");
  EXPECT_EQ(cache->snapshots()->Restore(kFirst, nullptr, 12).message(),
            "sequence 0 has no recurrent state after 12 tokens; the nearest below is after 9");
  ASSERT_TRUE(cache->snapshots()->Restore(kFirst, nullptr, 9).ok());
  EXPECT_EQ(ExportRange(*cache, kFirst, 0, 9), Stepwise(0, 9));
  auto parts = cache->snapshots()->SplitSnapshot(*later, 12);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ(parts->first, nullptr);
  auto whole = cache->snapshots()->MergeSnapshots(*earlier, parts->second);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(Export(*cache, **whole), Stepwise(0, 15));
}

// The restore points of tokens that a restore keeps stay.
TEST_F(RecurrentSnapshotTest, ARestoreKeepsEarlierRestorePoints) {
  RecurrentOptions options = Options();
  options.checkpoints = {.count = 8, .spacing = 5, .minimum = 0};
  auto cache = Open(options);
  for (Position p = 0; p < 20; ++p) ASSERT_TRUE(Forward(*cache, kFirst, p, p + 1).ok());
  auto snapshot =
      cache->snapshots()->TakeSnapshot(kFirst, 12, 20);  // checkpoints after 1, 6, 11 and 16
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE(cache->snapshots()->Restore(kFirst, snapshot->get(), 20).ok());
  EXPECT_EQ(*cache->PrepareRestore(kFirst, 19), 11);
  EXPECT_EQ(*cache->PrepareRestore(kFirst, 20), 20);
}

TEST_F(RecurrentSnapshotTest, SnapshotsOutliveTheirCache) {
  auto cache = Open();
  std::int64_t hooked = 0;
  cache->snapshots()->SetMaterializeHook([&](std::int64_t bytes) { hooked += bytes; });
  ASSERT_TRUE(Forward(*cache, kFirst, 0, 5).ok());
  auto lazy = cache->snapshots()->TakeSnapshot(kFirst, 0, 5);
  auto owned = cache->snapshots()->TakeSnapshot(kFirst, 0, 5);
  ASSERT_TRUE(cache->snapshots()->Materialize(**owned).ok());
  cache->Close();
  EXPECT_EQ(cache->snapshots()->Restore(kFirst, owned->get(), 5).code(),
            StatusCode::kInvalidArgument);
  auto other = Open();
  EXPECT_EQ(other->snapshots()->Restore(kFirst, owned->get(), 5).message(),
            "the snapshot is of another cache; export and import it");
  cache.reset();
  const std::int64_t before = hooked;
  lazy->reset();
  owned->reset();
  EXPECT_EQ(hooked, before) << "a closed cache tells its hook nothing";
}

}  // namespace
}  // namespace kvcache::recurrent_snapshot_test
