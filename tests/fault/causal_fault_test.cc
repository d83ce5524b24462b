// The causal cache when something fails, at every point where something can.
//
// Backend calls: each call of each step of random scripts fails once, and the script goes on; the
// driver compares with the naive cache throughout. Metadata: each allocation of a call fails
// once; the call says so, and succeeds when repeated, as if nothing had happened.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "cache/causal_cache_impl.h"
#include "support/cache_driver.h"
#include "support/script_random.h"

namespace {
int allocations_until_failure = 0;  // 0: none fails
}  // namespace

// Not inlined: the compiler would take malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_until_failure > 0 && --allocations_until_failure == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size != 0 ? size : 1); memory != nullptr) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace kvcache::testing {
namespace {

using Call = ReferenceBackend::Call;

Script RandomScript(const DriverSetup& setup, int steps, std::mt19937& random) {
  CacheDriver driver(setup);
  Script script;
  for (int i = 0; i < steps; ++i) {
    script.push_back(RandomStep(setup, driver.naive(), random));
    script.back().fail_nth = 0;
    const auto difference = driver.Step(script.back());
    EXPECT_FALSE(difference.has_value()) << *difference << "\n" << ToText(script);
  }
  return script;
}

// Fails the n-th backend call of step `at`, runs the rest; returns whether there was such a call.
bool RunWithFailure(const DriverSetup& setup, Script script, std::size_t at, int n) {
  script[at].fail_call = Call::kAny;
  script[at].fail_nth = n;
  CacheDriver driver(setup);
  bool fired = false;
  for (std::size_t i = 0; i < script.size(); ++i) {
    const auto difference = driver.Step(script[i]);
    if (difference.has_value()) {
      ADD_FAILURE() << ToText(setup) << "\n" << ToText(script) << "→ " << *difference;
      return false;
    }
    if (i == at) fired = driver.last_step_failed();
  }
  EXPECT_FALSE(driver.Finish().has_value());
  return fired;
}

TEST(CausalFaultTest, EveryBackendCallOfRandomScriptsFailsOnce) {
  std::mt19937 random(5);
  int fired = 0;
  for (int round = 0; round < 20; ++round) {
    const DriverSetup setup = RandomSetup(random);
    const Script script = RandomScript(setup, 30, random);
    for (std::size_t at = 0; at < script.size(); ++at) {
      for (int n = 1; RunWithFailure(setup, script, at, n); ++n) ++fired;
    }
  }
  EXPECT_GT(fired, 500);
}

// Copies and shifts fail in the middle of a removal in each of the layers.
TEST(CausalFaultTest, EachPointOfASharedMiddleRemoval) {
  DriverSetup setup;
  setup.options = {DType::kF32, DType::kF16, 2, 8, 4};
  const Script script = ParseScript(
      "forward 0:0 0:1 0:2 0:3\n"
      "copy 0 1 4\n"
      "forward 1:4\n"
      "remove 1 1 2\n"  // copies 2 shared cells, turns 3: in each of 3 layers
      "forward 0:4 1:0\n"
      "copy 0 1 3\n");
  int n = 1;
  while (RunWithFailure(setup, script, 3, n)) ++n;
  EXPECT_EQ(n - 1, 2 * CacheDriver::kLayers);
}

TEST(CausalFaultTest, EachPointOfAFirstPut) {
  DriverSetup setup;
  setup.options = {DType::kBF16, DType::kF32, 1, 4, 2};
  const Script script = ParseScript("forward 0:0 0:1\nremove 0 0 end\nforward 0:0 0:1\n");
  int n = 1;
  while (RunWithFailure(setup, script, 0, n)) ++n;
  EXPECT_EQ(n - 1, 3 * CacheDriver::kLayers);  // K, V, and the store
}

// Lends memory and does nothing else, so that every allocation seen is the cache's or a buffer.
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

// Calls `call` with its first, second, … allocation failing until it succeeds. Returns how many
// failed. Each failure must be reported as such.
int FailEachAllocation(const std::function<Status()>& call, const std::function<void()>& check) {
  for (int n = 1;; ++n) {
    allocations_until_failure = n;
    const Status status = call();
    const bool fired = allocations_until_failure == 0;
    allocations_until_failure = 0;
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
    EXPECT_TRUE(cache_.SetConfig({}).ok());
    EXPECT_TRUE(
        cache_.Init(backend_, {DType::kF32, DType::kF32, sequences, capacity, max_batch}).ok());
  }

  // Cells used and runs of sequences 0 and 1.
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

  // Tokens of sequence 0 at every second position: each is a run.
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
  ASSERT_TRUE(cache_.SetConfig({}).ok());
  const int failed = FailEachAllocation(
      [&] {
        return cache_.Init(backend_, {DType::kF32, DType::kF32, 3, 4, 5});
      },
      [&] { EXPECT_EQ(cache_.cells().cells(), 0); });
  EXPECT_GT(failed, 8);
  EXPECT_TRUE(StartForward(cache_, {{0, 0, 0}}).ok());
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

TEST_F(MetadataFaultTest, PutAndGet) {
  Open(2, 8, 4);
  float data[16] = {};
  const TensorView view = TensorView::Dense(data, DType::kF32, 4, 1, 1);
  ASSERT_TRUE(StartForward(cache_, {{0, 0, 0}}).ok());
  EXPECT_EQ(FailEach([&] {
              EXPECT_EQ(cache_.AllocatedBytes(), 0);
              return cache_.Put(view, view);
            }),
            5);  // twice a buffer's object and bytes, and the list of layers
  EXPECT_EQ(FailEach([&] {
              auto history = cache_.Get();
              return history.ok() ? Status::Ok() : std::move(history).TakeStatus();
            }),
            1);  // the mask
}

}  // namespace
}  // namespace kvcache::testing
