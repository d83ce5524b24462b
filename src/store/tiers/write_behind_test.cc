// Writing behind: bounded, and not stopped by errors or exceptions.
#include "store/tiers/write_behind.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "store/store_testing.h"

namespace kvcache::store::write_behind_test {
namespace {

StoreBytes BytesOf(const std::vector<std::byte>& payload) {
  StoreBytes bytes = std::move(StoreBytes::Make(payload.size())).value();
  std::memcpy(bytes.data.get(), payload.data(), payload.size());
  return bytes;
}

// A memory store that is slow, fails, or throws.
class OddStore final : public Store {
 public:
  Status Get(const ObjectId& id, const Reader& reader) override { return inner->Get(id, reader); }
  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    std::this_thread::sleep_for(delay);
    if (id == throws) throw std::runtime_error("the disk is on fire");
    if (id == fails) return {StatusCode::kIo, "no space left"};
    return inner->Put(id, payload);
  }
  Result<bool> Contains(const ObjectId& id) override { return inner->Contains(id); }
  void Touch(std::span<const ObjectId> ids) override { inner->Touch(ids); }
  Status Remove(const ObjectId& id) override { return inner->Remove(id); }
  Result<std::vector<StoredObject>> List() override { return inner->List(); }
  Result<StoreStats> Usage() override { return inner->Usage(); }
  StoreTier tier() const override { return inner->tier(); }

  std::unique_ptr<Store> inner = std::move(*MakeMemoryStore());
  std::chrono::milliseconds delay{0};
  ObjectId throws = TestId(1000), fails = TestId(1001);
};

// Waits until the thread waits for a condition inside `writer`, and returns true. Returns false if the system does
// not say what threads wait for.
//
// The file holds the number of the system call that the thread is in, and its arguments (proc_pid_syscall(5)); those of
// a futex are an address and an operation. glibc waits for a condition with FUTEX_WAIT_BITSET, and for a mutex with FUTEX_WAIT.
bool WaitsFor(const WriteBehind& writer, const std::atomic<pid_t>& thread) {
  const auto begin = reinterpret_cast<std::uintptr_t>(&writer);
  for (;; std::this_thread::yield()) {
    if (thread == 0) continue;
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    std::string call;
    std::uintptr_t address = 0;
    int operation = 0;
    if (!(file >> call)) return false;
    if (call != std::to_string(SYS_futex)) continue;
    file >> std::hex >> address >> operation;
    if (address - begin < sizeof(writer) && (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET) {
      return true;
    }
  }
}

TEST(WriteBehindTest, WritesEverythingBeforeItEnds) {
  OddStore store;
  store.delay = std::chrono::milliseconds(1);
  {
    WriteBehind writer(store, 1 << 20);
    for (std::uint64_t i = 0; i < 30; ++i) {
      EXPECT_EQ(writer.Add(TestId(i), BytesOf(TestPayload(i, 100)), 0),
                WriteBehind::Outcome::kQueued);
    }
    EXPECT_TRUE(writer.Holds(TestId(29)));
  }
  for (std::uint64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(*ReadObject(store, TestId(i)), TestPayload(i, 100));
  }
}

TEST(WriteBehindTest, BoundsWhatWaits) {
  OddStore store;
  store.delay = std::chrono::milliseconds(20);
  WriteBehind writer(store, 1000);
  int queued = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    if (writer.Add(TestId(i), BytesOf(TestPayload(i, 400)), 0) == WriteBehind::Outcome::kQueued) {
      ++queued;
    }
    EXPECT_LE(writer.waiting_bytes(), 1000);
  }
  EXPECT_GE(queued, 2);
  EXPECT_LT(queued, 10);
  EXPECT_EQ(writer.dropped(), 10 - queued);
  EXPECT_EQ(writer.Add(TestId(50), BytesOf(TestPayload(50, 400)), 5000),
            WriteBehind::Outcome::kQueued)
      << "there is room in a moment";
  writer.Flush();
  EXPECT_EQ(writer.waiting_bytes(), 0);
  EXPECT_TRUE(*store.Contains(TestId(50)));
  EXPECT_EQ(writer.Add(TestId(51), BytesOf(TestPayload(51, 5000)), 0),
            WriteBehind::Outcome::kQueued)
      << "one object may be larger";
}

// Two threads wait for room with the same object.
TEST(WriteBehindTest, WritesAnObjectOnce) {
  OddStore store;
  std::atomic<int> written = 0;
  std::promise<void> first_may, second_may;
  WriteBehind writer(store, 1000, [&](const ObjectId& id, std::span<const std::byte> payload) {
    if (id == TestId(1)) first_may.get_future().wait();
    if (id == TestId(2) && written++ == 0) second_may.get_future().wait();
    return store.Put(id, payload);
  });
  (void)writer.Add(TestId(1), BytesOf(TestPayload(1, 900)), 0);
  std::array<std::atomic<pid_t>, 2> ids{};
  std::vector<std::thread> threads;
  for (std::atomic<pid_t>& thread_id : ids) {
    threads.emplace_back([&] {
      thread_id = gettid();
      EXPECT_EQ(writer.Add(TestId(2), BytesOf(TestPayload(2, 400)), 600'000),
                WriteBehind::Outcome::kQueued);
    });
  }
  bool do_wait = true;
  for (const std::atomic<pid_t>& id : ids) do_wait = WaitsFor(writer, id) && do_wait;
  first_may.set_value();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(writer.waiting_bytes(), 400) << "the object is queued once";
  second_may.set_value();
  writer.Flush();
  EXPECT_EQ(written, 1);
  if (!do_wait) GTEST_SKIP() << "the system does not say what a thread waits for";
}

TEST(WriteBehindTest, ContinuesAfterErrorsAndExceptions) {
  OddStore store;
  WriteBehind writer(store, 1 << 20);
  EXPECT_EQ(writer.TakeProblem(), "");
  (void)writer.Add(store.throws, BytesOf(TestPayload(1, 10)), 0);
  (void)writer.Add(store.fails, BytesOf(TestPayload(1, 10)), 0);
  (void)writer.Add(TestId(3), BytesOf(TestPayload(3, 10)), 0);
  writer.Flush();
  EXPECT_EQ(*ReadObject(store, TestId(3)), TestPayload(3, 10));
  EXPECT_EQ(writer.TakeProblem(), "the disk is on fire");
  EXPECT_EQ(writer.TakeProblem(), "");
  EXPECT_EQ(writer.dropped(), 2);
}

}  // namespace
}  // namespace kvcache::store::write_behind_test
