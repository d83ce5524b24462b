// Fails every allocation of the caches' metadata, one per run. The call must return kOutOfMemory,
// change nothing, and succeed when repeated.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "cache/causal/causal_cache_impl.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"
#include "support/cache_harness.h"
#include "support/counting_new.h"
#include "support/reference_backend.h"

namespace kvcache::testing::metadata_fault_test {
namespace {

// Allocates buffers and does nothing else, so that every counted allocation is a buffer or is made
// by the cache.
class NullBackend : public ReferenceBackend {
 public:
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    try {
      return std::unique_ptr<Buffer>(std::make_unique<HeapBuffer>(size_bytes));
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kOutOfMemory, "heap");
    }
  }
  Status StoreKv(const LayerKv&, const TensorView&, const TensorView&,
                 std::span<const CellRun>) override {
    return Status::Ok();
  }
  Status CopyCells(const LayerKv&, std::span<const CellMove>) override { return Status::Ok(); }

 private:
  class HeapBuffer : public Buffer {
   public:
    explicit HeapBuffer(std::size_t size_bytes) : bytes_(size_bytes) {}
    std::byte* data() override { return bytes_.data(); }
    std::size_t size_bytes() const override { return bytes_.size(); }

   private:
    std::vector<std::byte> bytes_;
  };
};

// Repeats `call`, failing its first, second, … allocation, until it succeeds. Returns the number of
// failures. The call must report each failure.
int FailEachAllocation(const std::function<Status()>& call, const std::function<void()>& check) {
  for (int n = 1;; ++n) {
    FailAllocation(n);
    const Status status = call();
    const bool fired = !AllocationFailurePending();
    FailAllocation(0);
    if (!fired) {
      EXPECT_TRUE(status.ok()) << status.message();
      return n - 1;
    }
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << "allocation " << n;
    check();
  }
}

class MetadataFaultTest : public ::testing::Test {
 protected:
  void Open(int sequences, int capacity, int max_batch) {
    EXPECT_TRUE(
        cache_.Init(backend_, {DType::kF32, DType::kF32, sequences, capacity, max_batch}).ok());
  }

  // Returns the used cells, and the runs of sequences 0 and 1.
  std::vector<std::int64_t> Metadata() const {
    std::vector<std::int64_t> all = {cache_.cells().free_cells()};
    for (const int s : {0, 1}) {
      for (const HistoryRun& run : cache_.cells().history(SequenceId{s}).runs()) {
        all.insert(all.end(), {run.position, run.cell, run.length});
      }
      all.push_back(-1);
    }
    return all;
  }

  int FailEach(const std::function<Status()>& call) {
    const auto before = Metadata();
    return FailEachAllocation(call, [&] { EXPECT_EQ(Metadata(), before); });
  }

  // Adds tokens of sequence 0 at every second position, so that each is a run.
  void FillWithGaps(int tokens) {
    for (int i = 0; i < tokens; ++i) {
      ASSERT_TRUE(StartForward(cache_, {{0, 2 * i, 0}}).ok());
    }
  }

  NullBackend backend_;
  CausalCache cache_{CausalOptions{
      [](int, const LayerKv&, std::span<const CellRun>, Position) { return Status::Ok(); }}};
};

TEST_F(MetadataFaultTest, Init) {
  const int failed = FailEachAllocation(
      [&] {
        return cache_.Init(backend_, {DType::kF32, DType::kF32, 3, 4, 5});
      },
      [&] { EXPECT_EQ(cache_.cells().cells(), 0); });
  EXPECT_GT(failed, 8);
  EXPECT_TRUE(StartForward(cache_, {{0, 0, 0}}).ok());
}

// Repeats Init until no allocation fails, and then runs a pass.
TEST_F(MetadataFaultTest, InitOfTheOtherKinds) {
  CausalOptions window{.window = 3};
  RecurrentOptions recurrent{.layers = {0, 2}, .conv_dim = 2, .conv_channels = 3};
  std::vector<std::unique_ptr<Cache>> caches;
  caches.push_back(MakeCausalCache(window));
  caches.push_back(MakeEncoderCache({.max_tokens = 4}));
  caches.push_back(MakeRecurrentCache(recurrent));
  for (const auto& cache : caches) {
    const int failed = FailEachAllocation(
        [&] {
          return cache->Init(backend_, {DType::kF32, DType::kF32, 3, 8, 5});
        },
        [&] { EXPECT_FALSE(cache->CanResume(SequenceId{0}, 0)); });
    EXPECT_GT(failed, 3);
    EXPECT_TRUE(StartForward(*cache, {{0, 0, 0}}).ok());
  }
}

TEST_F(MetadataFaultTest, Compaction) {
  Open(2, 8, 4);
  ASSERT_TRUE(StartForward(cache_, {{0, 0, 0}, {0, 1, 0}}).ok());
  ASSERT_TRUE(StartForward(cache_, {{1, 0, 0}}).ok());
  ASSERT_EQ(Metadata(), (std::vector<std::int64_t>{13, 0, 0, 2, -1, 0, 8, 1, -1}));
  // The list of moves takes two allocations, and each sequence's list of runs takes one.
  EXPECT_EQ(FailEach([&] { return cache_.memory()->Compact(); }), 4);
  EXPECT_EQ(Metadata(), (std::vector<std::int64_t>{13, 0, 0, 2, -1, 0, 2, 1, -1}));
}

TEST_F(MetadataFaultTest, ForwardThatNeedsMoreRuns) {
  Open(2, 400, 80);
  FillWithGaps(60);
  std::vector<Position> positions;
  for (int i = 60; i < 140; ++i) positions.push_back(2 * i);
  const std::vector<SequenceId> sequences(positions.size(), SequenceId{0});
  const Batch batch{positions, sequences, {}};
  EXPECT_EQ(FailEach([&] { return cache_.StartForward(batch, ForwardMode::kCompute); }), 1);
}

// Fails the allocations for draft paths. A refused batch keeps no memory, and accepting a path
// allocates none.
TEST_F(MetadataFaultTest, DraftsBehindManyRuns) {
  Open(2, 400, 8);
  FillWithGaps(40);
  std::vector<Position> positions = {79, 79, 80, 80};
  const std::vector<SequenceId> sequences(positions.size(), SequenceId{0});
  const std::vector<std::int32_t> parents = {-1, -1, 0, 1};
  const Batch batch{positions, sequences, {}, parents};
  EXPECT_EQ(FailEach([&] { return cache_.StartForward(batch, ForwardMode::kCompute); }), 1);
  EXPECT_EQ(cache_.Visible().histories.size(), 2u);
  const std::vector<std::int32_t> last = {3};
  FailAllocation(1);
  const bool kept = cache_.AcceptDrafts(last).ok();
  const bool asked = !AllocationFailurePending();
  FailAllocation(0);
  EXPECT_TRUE(kept);
  EXPECT_FALSE(asked);
  EXPECT_EQ(cache_.cells().history(SequenceId{0}).length(), 81);
}

TEST_F(MetadataFaultTest, CopyOfManyRuns) {
  Open(2, 400, 1);
  FillWithGaps(100);
  EXPECT_EQ(FailEach([&] { return cache_.CopyPrefix(SequenceId{0}, SequenceId{1}, 150); }), 1);
}

TEST_F(MetadataFaultTest, MiddleRemovalOfManySharedRuns) {
  Open(2, 400, 1);
  FillWithGaps(100);
  ASSERT_TRUE(cache_.CopyPrefix(SequenceId{0}, SequenceId{1}, 150).ok());
  EXPECT_EQ(FailEach([&] { return cache_.Remove(SequenceId{1}, 3, 5); }), 4);
}

// Fails every allocation of a round: nothing changes, and the round succeeds when repeated. A commit
// and a rollback need no memory.
TEST_F(MetadataFaultTest, TransactionOverManyRuns) {
  Open(2, 400, 80);
  FillWithGaps(60);
  const SequenceLength members[] = {{SequenceId{0}, 119}, {SequenceId{1}, 0}};
  Cache* const caches[] = {&cache_};
  std::vector<Position> positions;
  for (int i = 60; i < 140; ++i) positions.push_back(2 * i);
  const std::vector<SequenceId> sequences(positions.size(), SequenceId{0});
  const Batch batch{positions, sequences, {}};
  const auto before = Metadata();
  const int failed = FailEachAllocation(
      [&] {
        KVCACHE_ASSIGN_OR_RETURN(Transaction round,
                                 Transaction::Begin(caches, members, {.max_tokens = 200}));
        KVCACHE_RETURN_IF_ERROR(cache_.StartForward(batch, ForwardMode::kCompute));
        return round.Commit({2, 0});
      },
      [&] { EXPECT_EQ(Metadata(), before); });
  EXPECT_EQ(failed, 4);  // three lists of the transaction, and the runs of the batch
  EXPECT_EQ(cache_.cells().history(SequenceId{0}).length(), 119 + 2);
}

// Snapshots allocate their object and lists. After an error nothing is held.
TEST_F(MetadataFaultTest, SnapshotsOfManyRuns) {
  Open(2, 400, 1);
  FillWithGaps(40);
  std::unique_ptr<Snapshot> snapshot;
  EXPECT_EQ(FailEach([&] {
              KVCACHE_ASSIGN_OR_RETURN(snapshot,
                                       cache_.snapshots()->TakeSnapshot(SequenceId{0}, 0, 79));
              return Status::Ok();
            }),
            2);
  SnapshotParts parts;
  EXPECT_GT(FailEach([&] {
              KVCACHE_ASSIGN_OR_RETURN(parts, cache_.snapshots()->SplitSnapshot(snapshot, 40));
              return Status::Ok();
            }),
            1);
  EXPECT_EQ(FailEach([&] {
              KVCACHE_ASSIGN_OR_RETURN(
                  snapshot, cache_.snapshots()->MergeSnapshots(parts.first, parts.second));
              return Status::Ok();
            }),
            0);  // merging what was one before needs no memory
  EXPECT_EQ(snapshot->HeldCells(), 40);
  const Position lengths[] = {80, 82};
  EXPECT_GT(
      FailEach([&] { return cache_.snapshots()->ScheduleCaptures(SequenceId{0}, 79, lengths); }),
      1);
  EXPECT_GT(
      FailEach([&] { return cache_.snapshots()->Restore(SequenceId{1}, snapshot.get(), 79); }), 0);
  EXPECT_GT(FailEachAllocation([&] { return cache_.snapshots()->Materialize(*snapshot); },
                               [&] { EXPECT_EQ(snapshot->HeldBytes(), 0); }),
            0);
}

// Fails every allocation of a round over recurrent layers that keeps a part of its pass.
TEST_F(MetadataFaultTest, TransactionOverRecurrentStates) {
  int replays = 0;
  RecurrentOptions options{.layers = {1}, .state_size = 4, .draft_inputs = 2};
  options.replay_drafts = [&](const DraftReplay& replay) {
    replays += static_cast<int>(replay.recurrent.segments.size());
    return Status::Ok();
  };
  auto cache = MakeRecurrentCache(std::move(options));
  ASSERT_TRUE(cache->Init(backend_, {DType::kF32, DType::kF32, 2, 32, 8}).ok());
  const std::vector<Position> positions = {0, 1, 2, 3};
  const std::vector<SequenceId> sequences(4, SequenceId{0});
  float data[16] = {};
  const TensorView rows = TensorView::Dense(data, DType::kF32, 4, 1, 4);
  const SequenceLength members[] = {{SequenceId{0}, 0}};
  Cache* const caches[] = {cache.get()};
  const int failed = FailEachAllocation(
      [&] {
        KVCACHE_ASSIGN_OR_RETURN(Transaction round,
                                 Transaction::Begin(caches, members, {.max_tokens = 4}));
        KVCACHE_RETURN_IF_ERROR(
            cache->StartForward({positions, sequences, {}}, ForwardMode::kCompute));
        KVCACHE_RETURN_IF_ERROR(cache->Put(rows, rows));
        KVCACHE_RETURN_IF_ERROR(cache->Segments(1, StateKind::kRecurrent).status());
        KVCACHE_RETURN_IF_ERROR(cache->DraftInputs(1).status());
        KVCACHE_RETURN_IF_ERROR(cache->MarkWritten(1, StateKind::kRecurrent));
        return round.Commit({2});
      },
      [&] { EXPECT_FALSE(cache->CanResume(SequenceId{0}, 1)); });
  EXPECT_GT(failed, 5);
  EXPECT_EQ(replays, 1);
  EXPECT_TRUE(cache->CanResume(SequenceId{0}, 2));
  EXPECT_FALSE(cache->CanResume(SequenceId{0}, 3));
}

TEST_F(MetadataFaultTest, PutAndGet) {
  Open(2, 8, 4);
  float data[16] = {};
  const TensorView view = TensorView::Dense(data, DType::kF32, 4, 1, 1);
  ASSERT_TRUE(StartForward(cache_, {{0, 0, 0}}).ok());
  EXPECT_EQ(FailEach([&] {
              EXPECT_EQ(cache_.memory()->AllocatedBytes(), 0);
              return cache_.Put(view, view);
            }),
            5);  // for K and V a buffer's object and bytes each, and the list of layers
  EXPECT_EQ(FailEach([&] {
              auto history = cache_.Get();
              return history.ok() ? Status::Ok() : std::move(history).TakeStatus();
            }),
            1);  // the mask
}

// Every call of a recurrent cache that has to do with snapshots.
TEST_F(MetadataFaultTest, SnapshotsOfRecurrentStates) {
  auto cache = MakeRecurrentCache({.layers = {1}, .state_size = 4});
  ASSERT_TRUE(cache->Init(backend_, {DType::kF32, DType::kF32, 2, 32, 8}).ok());
  const std::vector<Position> positions = {0, 1, 2, 3};
  const std::vector<SequenceId> sequences(4, SequenceId{0});
  const std::vector<Position> lengths = {2, 4};
  const auto no_change = [&] { EXPECT_EQ(cache->snapshots()->SnapshotBytes(), 0); };
  EXPECT_GT(FailEachAllocation(
                [&] { return cache->snapshots()->ScheduleCaptures(SequenceId{0}, 0, lengths); },
                no_change),
            1);
  EXPECT_GT(FailEachAllocation(
                [&] {
                  return cache->StartForward({positions, sequences, {}}, ForwardMode::kCompute);
                },
                [&] { EXPECT_TRUE(cache->Sequences().empty()); }),
            3);
  float data[16] = {};
  const TensorView rows = TensorView::Dense(data, DType::kF32, 4, 1, 4);
  ASSERT_TRUE(cache->Put(rows, rows).ok());
  ASSERT_TRUE(cache->Segments(1, StateKind::kRecurrent).ok());
  ASSERT_TRUE(cache->MarkWritten(1, StateKind::kRecurrent).ok());
  std::vector<std::unique_ptr<Snapshot>> captures;
  EXPECT_GT(FailEachAllocation(
                [&] {
                  auto taken = cache->snapshots()->TakeCaptures(SequenceId{0});
                  if (!taken.ok()) return std::move(taken).TakeStatus();
                  captures = std::move(*taken);
                  return Status::Ok();
                },
                no_change),
            0);
  ASSERT_EQ(captures.size(), 2u);
  ASSERT_NE(captures[0], nullptr);
  ASSERT_NE(captures[1], nullptr);
  std::unique_ptr<Snapshot> whole;
  EXPECT_GT(FailEachAllocation(
                [&] {
                  auto taken = cache->snapshots()->TakeSnapshot(SequenceId{0}, 0, 4);
                  if (!taken.ok()) return std::move(taken).TakeStatus();
                  whole = std::move(*taken);
                  return Status::Ok();
                },
                no_change),
            1);
  EXPECT_GT(FailEachAllocation([&] { return cache->snapshots()->Materialize(*whole); },
                               [&] { EXPECT_GT(whole->HeldCells(), 0); }),
            1);
  EXPECT_GT(
      FailEachAllocation([&] { return cache->snapshots()->Restore(SequenceId{1}, whole.get(), 4); },
                         [&] { EXPECT_FALSE(cache->CanResume(SequenceId{1}, 4)); }),
      0);
  EXPECT_TRUE(cache->CanResume(SequenceId{1}, 4));
  std::vector<std::byte> bytes(static_cast<std::size_t>(*cache->snapshots()->ExportSize(*whole)));
  EXPECT_GT(FailEachAllocation([&] { return cache->snapshots()->Export(*whole, bytes); }, [] {}),
            1);
  whole.reset();
  captures.clear();
  EXPECT_GT(
      FailEachAllocation([&] { return cache->snapshots()->Import(bytes).status(); }, no_change), 3);
}

}  // namespace
}  // namespace kvcache::testing::metadata_fault_test
