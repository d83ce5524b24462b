// Snapshots over the processor's kernels: every cache type, cells in other lanes than before, and
// bytes that move to another cache. Random scripts of all calls are in tests/model.
#include "kvcache/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::snapshot_test {
namespace {

constexpr int kHeads = 2;
constexpr int kDim = 64;
constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr SequenceId kThird{2};

class SnapshotTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Cache> Open(int capacity, CausalOptions options = {}, int sequences = 3) {
    auto cache = MakeCausalCache(std::move(options));
    const Status status = cache->Init(*backend_, {GetParam(), GetParam(), sequences, capacity, 64});
    EXPECT_TRUE(status.ok()) << status.message();
    return cache;
  }

  // Evaluates positions [begin, end): writes random keys and values to two layers.
  void Fill(Cache& cache, SequenceId id, Position begin, Position end) {
    for (Position p = begin; p < end; p += 64) {
      const auto count = static_cast<std::int32_t>(std::min<Position>(64, end - p));
      batch_.Clear();
      batch_.Add(id, p, count);
      ASSERT_TRUE(cache.StartForward(batch_.view(), ForwardMode::kCompute).ok());
      for (int layer = 0; layer < 2; ++layer) {
        std::vector<float> k(kHeads * kDim * count);
        std::vector<float> v(kHeads * kDim * count);
        for (float& x : k) x = normal_(random_);
        for (float& x : v) x = normal_(random_);
        cache.SetLayer(layer);
        const auto view = [&](const std::vector<float>& x) {
          return TensorView::Dense(x.data(), DType::kF32, kDim, kHeads, count);
        };
        ASSERT_TRUE(cache.Put(view(k), view(v)).ok());
      }
    }
  }

  std::vector<std::byte> Export(Cache& cache, const Snapshot& snapshot) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(*cache.snapshots()->ExportSize(snapshot)),
                                 static_cast<std::byte>(++exports_));
    const Status status = cache.snapshots()->Export(snapshot, bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    return bytes;
  }
  std::vector<std::byte> ExportRange(Cache& cache, SequenceId id, Position begin, Position end) {
    auto snapshot = cache.snapshots()->TakeSnapshot(id, begin, end);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
    return Export(cache, **snapshot);
  }

  // Returns the attention of one query at the sequence's end, in both layers.
  std::vector<float> Attend(Cache& cache, SequenceId id, Position length) {
    batch_.Clear();
    batch_.Add(id, length);
    EXPECT_TRUE(cache.StartForward(batch_.view(), ForwardMode::kCompute).ok());
    std::vector<float> result;
    for (int layer = 0; layer < 2; ++layer) {
      const std::vector<float> kv(kHeads * kDim, 0.25f);
      cache.SetLayer(layer);
      const TensorView row = TensorView::Dense(kv.data(), DType::kF32, kDim, kHeads, 1);
      EXPECT_TRUE(cache.Put(row, row).ok());
      std::vector<float> q(kHeads * kDim);
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.01f * static_cast<float>(i % 29) - 0.1f;
      std::vector<float> out(kHeads * kDim);
      EXPECT_TRUE(backend_
                      ->Attention(*cache.Storage(),
                                  TensorView::Dense(q.data(), DType::kF32, kDim, kHeads, 1),
                                  cache.Visible(), {.scale = 0.125f},
                                  TensorView::Dense(out.data(), DType::kF32, kDim, kHeads, 1))
                      .ok());
      result.insert(result.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(cache.Remove(id, length, kEndOfSequence).ok());
    return result;
  }

  std::unique_ptr<Backend> backend_ = *MakeCpuBackend({.threads = 2});
  BatchBuilder batch_;
  int exports_ = 0;  // each export finds other bytes in its memory
  std::mt19937 random_{3};
  std::normal_distribution<float> normal_;
};

// The second sequence's cells begin in another lane, because the capacity is less than a tile.
TEST_P(SnapshotTest, RestoresTheSameBytesInOtherCells) {
  auto cache = Open(150);
  Fill(*cache, kFirst, 0, 101);
  const std::vector<std::byte> bytes = ExportRange(*cache, kFirst, 0, 101);
  const std::vector<float> attention = Attend(*cache, kFirst, 101);
  auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, 101);
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ((*snapshot)->HeldBytes(), 0);
  EXPECT_EQ((*snapshot)->HeldCells(), 101);
  ASSERT_TRUE(cache->snapshots()->Materialize(**snapshot).ok());
  EXPECT_EQ((*snapshot)->HeldCells(), 0);
  EXPECT_EQ((*snapshot)->HeldBytes(), cache->snapshots()->SnapshotBytes());
  Fill(*cache, kSecond, 0, 7);
  Fill(*cache, kThird, 0, 3);
  ASSERT_TRUE(cache->Remove(kFirst, 0, kEndOfSequence).ok());
  Fill(*cache, kFirst, 0, 45);  // other tokens in the old cells
  for (const SequenceId id : {kSecond, kThird, kFirst}) {
    ASSERT_TRUE(cache->snapshots()->Restore(id, snapshot->get(), 101).ok());
    EXPECT_EQ(ExportRange(*cache, id, 0, 101), bytes);
    EXPECT_EQ(Attend(*cache, id, 101), attention);
  }
}

TEST_P(SnapshotTest, PartsAreThoseOfTheWhole) {
  auto cache = Open(400);
  Fill(*cache, kFirst, 0, 300);
  const std::vector<std::byte> bytes = ExportRange(*cache, kFirst, 0, 300);
  for (const bool materialized : {false, true}) {
    auto whole = cache->snapshots()->TakeSnapshot(kFirst, 0, 300);
    ASSERT_TRUE(whole.ok());
    if (materialized) {
      ASSERT_TRUE(cache->snapshots()->Materialize(**whole).ok());
    }
    auto parts = cache->snapshots()->SplitSnapshot(*whole, 133);
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ(*whole, nullptr);
    EXPECT_EQ(Export(*cache, *parts->first), ExportRange(*cache, kFirst, 0, 133));
    EXPECT_EQ(Export(*cache, *parts->second), ExportRange(*cache, kFirst, 133, 300));
    ASSERT_TRUE(cache->snapshots()->Restore(kSecond, parts->first.get(), 133).ok());
    ASSERT_TRUE(cache->snapshots()->Restore(kSecond, parts->second.get(), 300).ok());
    EXPECT_EQ(ExportRange(*cache, kSecond, 0, 300), bytes);
    auto merged = cache->snapshots()->MergeSnapshots(parts->first, parts->second);
    ASSERT_TRUE(merged.ok());
    EXPECT_EQ(Export(*cache, **merged), bytes);
  }
}

TEST_P(SnapshotTest, MovesToACacheOfOtherSizes) {
  auto cache = Open(400, {.window = 100, .keys_identity = "model x"});
  Fill(*cache, kFirst, 0, 300);
  const std::vector<std::byte> bytes = ExportRange(*cache, kFirst, 0, 300);
  const std::vector<float> attention = Attend(*cache, kFirst, 300);
  auto other = Open(1000, {.window = 100, .keys_identity = "model x"}, 5);
  auto imported = other->snapshots()->Import(bytes);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  ASSERT_TRUE(other->snapshots()->Restore(kThird, imported->get(), 300).ok());
  EXPECT_EQ(Attend(*other, kThird, 300), attention);
  EXPECT_TRUE(other->CanResume(kThird, 300));
  EXPECT_FALSE(other->CanResume(kThird, 200));  // the window before 200 was not in the snapshot
}

TEST_P(SnapshotTest, RefusesForeignBytesWithBothSides) {
  auto cache = Open(400, {.keys_identity = "model x"});
  Fill(*cache, kFirst, 0, 20);
  std::vector<std::byte> bytes = ExportRange(*cache, kFirst, 0, 20);
  auto other = Open(400, {.keys_identity = "model y"});
  const Status foreign = other->snapshots()->Import(bytes).status();
  EXPECT_EQ(foreign.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(foreign.message().find("model x"), std::string::npos) << foreign.message();
  EXPECT_NE(foreign.message().find("model y"), std::string::npos) << foreign.message();
  for (std::size_t size = 0; size < bytes.size(); size += size < 400 ? 1 : 64) {
    EXPECT_FALSE(cache->snapshots()->Import(std::span(bytes).first(size)).ok()) << size;
  }
  std::uint64_t header = 0;  // keys and values have no checksum: stores add one
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  for (std::size_t i = 0; i < header; ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_FALSE(cache->snapshots()->Import(bytes).ok()) << i;
    bytes[i] ^= std::byte{1};
  }
  EXPECT_TRUE(cache->snapshots()->Import(bytes).ok());
  auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, 20);
  EXPECT_EQ(other->snapshots()->Restore(kFirst, snapshot->get(), 20).code(),
            StatusCode::kInvalidArgument);
}

// A snapshot may be imported before the model's first pass says what its layers are.
TEST_P(SnapshotTest, ARestoreNeedsLayersOfTheSameShape) {
  auto cache = Open(64);
  Fill(*cache, kFirst, 0, 20);
  auto other = Open(64);
  auto imported = other->snapshots()->Import(ExportRange(*cache, kFirst, 0, 20));
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_TRUE(other->snapshots()->CheckRestore(kSecond, imported->get(), 20).ok());
  batch_.Clear();
  batch_.Add(kFirst, 0);
  ASSERT_TRUE(other->StartForward(batch_.view(), ForwardMode::kCompute).ok());
  const std::vector<float> row(kDim);
  const TensorView one_head = TensorView::Dense(row.data(), DType::kF32, kDim, 1, 1);
  other->SetLayer(1);
  ASSERT_TRUE(other->Put(one_head, one_head).ok());
  const Status refused = other->snapshots()->CheckRestore(kSecond, imported->get(), 20);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "layer 1 has 1 heads of 64 (K) and 64 (V) values; "
            "the snapshot has 2 heads of 64 (K) and 64 (V) values");
  EXPECT_EQ(other->snapshots()->Restore(kSecond, imported->get(), 20).message(), refused.message());
  EXPECT_FALSE(other->snapshots()->TakeSnapshot(kSecond, 0, 1).ok());
}

TEST_P(SnapshotTest, ARestoreNeedsOneShapeInAMergedSnapshot) {
  auto cache = Open(64);
  Fill(*cache, kFirst, 0, 10);
  auto one_head = Open(64);
  batch_.Clear();
  batch_.Add(kFirst, 0, 20);
  ASSERT_TRUE(one_head->StartForward(batch_.view(), ForwardMode::kCompute).ok());
  const std::vector<float> rows(kDim * 20);
  for (int layer = 0; layer < 2; ++layer) {
    const TensorView view = TensorView::Dense(rows.data(), DType::kF32, kDim, 1, 20);
    one_head->SetLayer(layer);
    ASSERT_TRUE(one_head->Put(view, view).ok());
  }
  auto other = Open(64);
  auto first = other->snapshots()->Import(ExportRange(*cache, kFirst, 0, 10));
  auto second = other->snapshots()->Import(ExportRange(*one_head, kFirst, 10, 20));
  ASSERT_TRUE(first.ok() && second.ok());
  auto merged = other->snapshots()->MergeSnapshots(*first, *second);
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  const Status refused = other->snapshots()->CheckRestore(kSecond, merged->get(), 20);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "layer 0 has two shapes in a snapshot that was merged");
  EXPECT_EQ(other->snapshots()->Restore(kSecond, merged->get(), 20).message(), refused.message());
}

// A snapshot gives its cells back only when a pass needs them.
TEST_P(SnapshotTest, MaterializesUnderPressure) {
  auto cache = Open(64, {}, 2);
  std::int64_t hooked = 0;
  cache->snapshots()->SetMaterializeHook([&](std::int64_t bytes) { hooked += bytes; });
  Fill(*cache, kFirst, 0, 64);
  const std::vector<std::byte> bytes = ExportRange(*cache, kFirst, 0, 64);
  auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, 64);
  ASSERT_TRUE(cache->Remove(kFirst, 0, kEndOfSequence).ok());
  Fill(*cache, kSecond, 0, 64);
  EXPECT_EQ((*snapshot)->HeldBytes(), 0);
  EXPECT_EQ(hooked, 0);
  Fill(*cache, kSecond, 64, 65);
  EXPECT_EQ((*snapshot)->HeldCells(), 0);
  EXPECT_EQ(hooked, (*snapshot)->HeldBytes());
  EXPECT_GT(hooked, 0);
  EXPECT_EQ(Export(*cache, **snapshot), bytes);
  EXPECT_EQ(cache->snapshots()->Restore(kFirst, snapshot->get(), 64).code(),
            StatusCode::kCacheFull);
  ASSERT_TRUE(cache->Remove(kSecond, 64, kEndOfSequence).ok());
  ASSERT_TRUE(cache->snapshots()->Restore(kFirst, snapshot->get(), 64).ok());
  EXPECT_EQ(ExportRange(*cache, kFirst, 0, 64), bytes);
  snapshot->reset();
  EXPECT_EQ(hooked, 0);
}

// Memory of freed snapshots is used again, with other contents, up to the limit.
TEST_P(SnapshotTest, ReusesMemory) {
  constexpr Position kTokens = 2048;
  auto cache = Open(kTokens, {}, 2);
  std::int64_t hooked = 0;
  cache->snapshots()->SetMaterializeHook([&](std::int64_t bytes) { hooked += bytes; });
  for (const SequenceId id : {kFirst, kSecond}) Fill(*cache, id, 0, kTokens);
  auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, 0, kTokens);
  ASSERT_TRUE(cache->snapshots()->Materialize(**snapshot).ok());
  const std::int64_t held = (*snapshot)->HeldBytes();
  const std::int64_t spare = held < (std::int64_t{2} << 20) ? 0 : held;  // the heap keeps the rest
  EXPECT_EQ(cache->snapshots()->SpareBytes(), 0);
  snapshot->reset();
  EXPECT_EQ(cache->snapshots()->SpareBytes(), spare);
  EXPECT_EQ(hooked, 0);
  EXPECT_EQ(cache->snapshots()->SnapshotBytes(), 0);

  const std::vector<std::byte> bytes = ExportRange(*cache, kSecond, 0, kTokens - 5);
  snapshot = cache->snapshots()->TakeSnapshot(kSecond, 0, kTokens - 5);
  ASSERT_TRUE(cache->snapshots()->Materialize(**snapshot).ok());
  EXPECT_EQ(cache->snapshots()->SpareBytes(), 0);
  EXPECT_EQ(hooked, held);
  EXPECT_EQ(Export(*cache, **snapshot), bytes);
  snapshot->reset();
  cache->snapshots()->LimitSpareBytes(0);
  EXPECT_EQ(cache->snapshots()->SpareBytes(), 0);
  snapshot = cache->snapshots()->Import(bytes);
  snapshot->reset();
  EXPECT_EQ(cache->snapshots()->SpareBytes(), 0);
}

// Captures fire inside a batch; the window's hold what the pass evicts.
TEST_P(SnapshotTest, CapturesInsideABatch) {
  for (const int window : {0, 20}) {
    auto cache = Open(400, {.window = window});
    Fill(*cache, kFirst, 0, 30);
    ASSERT_TRUE(
        cache->snapshots()->ScheduleCaptures(kFirst, 30, std::vector<Position>{40, 77, 500}).ok());
    Fill(*cache, kFirst, 30, 94);
    auto captures = cache->snapshots()->TakeCaptures(kFirst);
    ASSERT_TRUE(captures.ok());
    ASSERT_EQ(captures->size(), 3u);
    EXPECT_EQ((*captures)[2], nullptr);
    EXPECT_EQ((*captures)[1]->begin(), 40);
    EXPECT_EQ((*captures)[1]->end(), 77);
    ASSERT_TRUE(cache->CopyPrefix(kFirst, kSecond, 30).ok());
    ASSERT_TRUE(cache->snapshots()->Restore(kSecond, (*captures)[0].get(), 40).ok());
    ASSERT_TRUE(cache->snapshots()->Restore(kSecond, (*captures)[1].get(), 77).ok());
    EXPECT_TRUE(cache->CanResume(kSecond, 77));
    if (window > 0) {
      Fill(*cache, kFirst, 94, 95);  // evicts what is before 74
      EXPECT_FALSE(cache->CanResume(kFirst, 77));
    } else {
      EXPECT_EQ(ExportRange(*cache, kSecond, 0, 77), ExportRange(*cache, kFirst, 0, 77));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SnapshotTest,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0,
                                           DType::kQ4_0),
                         [](const auto& type) { return std::string(InfoOf(type.param).name); });

}  // namespace
}  // namespace kvcache::snapshot_test
