// Objects for tests of stores: each has an id and a payload that its number decides.
//
// Thread safety: pure functions.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvcache/store.h"

namespace kvcache {

inline ObjectId TestId(std::uint64_t number, std::uint64_t space = 0) {
  ObjectId id;
  std::mt19937_64 random(number + 1);
  for (std::byte& byte : id.key.bytes) byte = static_cast<std::byte>(random());
  std::memcpy(id.fingerprint.bytes.data(), &space, sizeof(space));
  return id;
}

inline std::vector<std::byte> TestPayload(std::uint64_t number, std::size_t size) {
  std::vector<std::byte> payload(size);
  std::mt19937_64 random(number * 31 + size);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  return payload;
}

// Returns the payload of an object, or the error.
inline Result<std::vector<std::byte>> ReadObject(Store& store, const ObjectId& id) {
  std::vector<std::byte> bytes;
  KVCACHE_RETURN_IF_ERROR(store.Get(id, [&](std::span<const std::byte> payload) {
    bytes.assign(payload.begin(), payload.end());
    return Status::Ok();
  }));
  return bytes;
}

// A store that does not do what it should, as long as it is broken: errors, exceptions, another object's
// bytes, or late answers.
class FaultyStore final : public Store {
 public:
  enum class Fault : std::uint8_t { kErrors, kExceptions, kWrongBytes, kCutBytes, kSlow };
  FaultyStore(std::shared_ptr<Store> store, Fault what) : inner(std::move(store)), fault(what) {}

  Status Get(const ObjectId& id, const Reader& reader) override {
    KVCACHE_RETURN_IF_ERROR(Fail());
    return inner->Get(id, [&](std::span<const std::byte> payload) {
      // What is no snapshot has no room for damage that its checksum would not find.
      constexpr std::string_view kSnapshot = "kvsnap01";
      const bool is_snapshot = payload.size() >= 64 &&
                               std::memcmp(payload.data(), kSnapshot.data(), kSnapshot.size()) == 0;
      if (!is_broken || !is_snapshot) return reader(payload);
      std::vector<std::byte> bytes(payload.begin(), payload.end());
      if (fault == Fault::kCutBytes) bytes.resize(bytes.size() / 2);
      if (fault == Fault::kWrongBytes) bytes[40] ^= std::byte{1};
      return reader(bytes);
    });
  }
  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    KVCACHE_RETURN_IF_ERROR(Fail());
    if (before_put) before_put();
    ++puts;
    return inner->Put(id, payload);
  }
  Result<bool> Contains(const ObjectId& id) override {
    KVCACHE_RETURN_IF_ERROR(Fail());
    return inner->Contains(id);
  }
  void Touch(std::span<const ObjectId> ids) override { inner->Touch(ids); }
  Status Remove(const ObjectId& id) override { return inner->Remove(id); }
  Result<std::vector<StoredObject>> List() override { return inner->List(); }
  Result<StoreStats> Stats() override { return inner->Stats(); }
  Result<StoreStats> Usage() override { return inner->Usage(); }
  StoreTier tier() const override { return inner->tier(); }
  void SetEvictionHook(EvictionHook hook) override { inner->SetEvictionHook(std::move(hook)); }
  void Flush() override { inner->Flush(); }

  Status Fail() const {
    if (!is_broken) return Status::Ok();
    if (fault == Fault::kExceptions) throw std::runtime_error("the store is on fire");
    if (fault == Fault::kErrors) return {StatusCode::kIo, "the store is away"};
    if (fault == Fault::kSlow) std::this_thread::sleep_for(delay);
    return Status::Ok();
  }

  const std::shared_ptr<Store> inner;
  const Fault fault;
  std::chrono::milliseconds delay{0};
  std::function<void()> before_put;  // called by each Put
  std::atomic<std::int64_t> puts{0};
  std::atomic<bool> is_broken{false};
};

// A clock that continues when a test says so.
class ManualClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void Advance(std::chrono::milliseconds time) { ms_ += time.count(); }
  // Returns a function that reads it. This must outlive the function.
  std::function<TimePoint()> reader() const {
    return [this] { return TimePoint(std::chrono::milliseconds(ms_)); };
  }

 private:
  std::atomic<std::int64_t> ms_{1'000'000};
};

// A directory that vanishes with the object.
class TestDirectory {
 public:
  TestDirectory()
      : path_(::testing::TempDir() + "kvcache_store." + std::to_string(getpid()) + "." +
              std::to_string(counter_++)) {
    std::filesystem::remove_all(path_);
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file() const { return path_ + "/objects.mdb"; }

 private:
  inline static int counter_ = 0;
  std::string path_;
};

}  // namespace kvcache
