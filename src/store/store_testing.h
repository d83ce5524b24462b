// Objects for tests of stores: each has an id and a payload that its number decides.
//
// Thread safety: pure functions.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
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
