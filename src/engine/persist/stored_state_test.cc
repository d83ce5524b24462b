// The bytes of stored states: what is written is read, without a final state they are the exported snapshot,
// and other bytes are refused before anything is imported.
#include "engine/persist/stored_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "store/snapshot_description.h"

namespace kvcache::stored_state_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kHidden = 3;
constexpr Position kTokens = 5;
constexpr std::size_t kTrailer = 16 + kHidden * sizeof(float);

class StoredStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        cache_->Init(*backend_, {.max_sequences = 2, .capacity = 16, .max_batch = 16}).ok());
    BatchBuilder batch;
    batch.Add(SequenceId{0}, 0, kTokens);
    ASSERT_TRUE(cache_->StartForward(batch.view(), ForwardMode::kCompute).ok());
    std::vector<float> values(32 * kTokens, 0.5f);
    const TensorView view = TensorView::Dense(values.data(), DType::kF32, 32, 1, kTokens);
    cache_->SetLayer(0);
    ASSERT_TRUE(cache_->Put(view, view).ok());
    snapshot_ = std::move(*cache_->snapshots()->TakeSnapshot(SequenceId{0}, 0, kTokens));
  }

  Bytes Write(std::span<const float> last) {
    const auto bytes = WriteStoredState(*cache_, *snapshot_, last);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    return {bytes->span().begin(), bytes->span().end()};
  }
  Bytes Exported() {
    Bytes bytes(static_cast<std::size_t>(*cache_->snapshots()->ExportSize(*snapshot_)));
    EXPECT_TRUE(cache_->snapshots()->Export(*snapshot_, bytes).ok());
    return bytes;
  }
  // Returns why the payload is refused.
  std::string Error(const Bytes& payload, std::int64_t hidden_size = kHidden) {
    const auto state = ReadStoredState(*cache_, payload, hidden_size);
    if (state.ok()) return "";
    EXPECT_EQ(state.status().code(), StatusCode::kCorrupt);
    return std::string(state.status().message());
  }
  template <class T>
  static Bytes With(Bytes bytes, std::size_t from_end, T value) {
    std::memcpy(bytes.data() + bytes.size() - from_end, &value, sizeof(value));
    return bytes;
  }

  const std::vector<float> last_ = {1.5f, -2.0f, 0.25f};
  const std::unique_ptr<Backend> backend_ = std::move(*MakeCpuBackend({.threads = 1}));
  const std::unique_ptr<Cache> cache_ = MakeCausalCache();
  std::unique_ptr<Snapshot> snapshot_;
};

TEST_F(StoredStateTest, WithoutAFinalStateItIsTheSnapshot) {
  EXPECT_EQ(Write({}), Exported());
  const auto state = ReadStoredState(*cache_, Exported(), kHidden);
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_TRUE(state->last.empty());
  EXPECT_EQ(state->snapshot->end(), kTokens);
}

TEST_F(StoredStateTest, TheBytesAreAsDocumented) {
  const Bytes exported = Exported();
  const Bytes bytes = Write(last_);
  ASSERT_EQ(bytes.size(), exported.size() + kTrailer);
  EXPECT_EQ(Bytes(bytes.begin(), bytes.end() - kTrailer), exported);
  const unsigned char expected[kTrailer] = {
      'k', 'v', 'l',  'a',  's', 't', '0', '1',  4, 0, 0,    0,
      3,   0,   0,    0,                                             // position 4, 3 values
      0,   0,   0xc0, 0x3f, 0,   0,   0,   0xc0, 0, 0, 0x80, 0x3e};  // 1.5, -2, 0.25
  EXPECT_EQ(std::memcmp(bytes.data() + exported.size(), expected, kTrailer), 0);
  EXPECT_EQ(*store::SnapshotSize(bytes), exported.size());
}

TEST_F(StoredStateTest, ReadsWhatItWrites) {
  const auto state = ReadStoredState(*cache_, Write(last_), kHidden);
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_EQ(state->last, last_);
  EXPECT_TRUE(cache_->snapshots()->Restore(SequenceId{1}, state->snapshot.get(), kTokens).ok());
}

TEST_F(StoredStateTest, AModelWithoutAHeadIgnoresTheFinalState) {
  const auto state = ReadStoredState(*cache_, Write(last_), 0);
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_TRUE(state->last.empty());
  EXPECT_EQ(state->snapshot->end(), kTokens);
}

TEST_F(StoredStateTest, AStateThatIsNotFiniteIsNotWritten) {
  EXPECT_EQ(Write(std::vector<float>{1.0f, std::numeric_limits<float>::infinity(), 0.0f}),
            Exported());
}

TEST_F(StoredStateTest, RefusesOtherBytes) {
  const Bytes whole = Write(last_);
  EXPECT_EQ(Error(whole), "");
  EXPECT_EQ(Error(whole, 4), "a final state has 3 values; those of the model have 4");
  EXPECT_EQ(Error(With(whole, kTrailer, 'x')),
            "28 bytes follow the snapshot, and they are no final state");
  EXPECT_EQ(Error(With(whole, kTrailer - 8, 3)),
            "a final state is of position 3; the snapshot ends at 5");
  EXPECT_EQ(Error(With(whole, kTrailer - 8, -1)),
            "a final state is of position -1; the snapshot ends at 5");
  EXPECT_EQ(Error(With(whole, kTrailer - 12, 4)),
            "a final state of 4 values has 12 bytes of values");
  EXPECT_EQ(Error(With(whole, kTrailer - 12, 0)),
            "a final state of 0 values has 12 bytes of values");
  EXPECT_EQ(Error(With(whole, kTrailer - 12, 0x40000003)),
            "a final state of 1073741827 values has 12 bytes of values");
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(Error(With(whole, 8, value)), "a final state has a value that is not finite");
    EXPECT_EQ(Error(With(whole, 8, value), 0), "a final state has a value that is not finite");
  }
}

// No beginning of the payload is taken for it, except for the snapshot itself.
TEST_F(StoredStateTest, RefusesBytesThatWereCut) {
  const Bytes whole = Write(last_);
  const std::size_t exported = whole.size() - kTrailer;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(Error(cut).empty(), size == exported) << size;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Error(longer), "a final state of 3 values has 13 bytes of values");
}

}  // namespace
}  // namespace kvcache::stored_state_test
