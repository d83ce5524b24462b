// Writes objects to a store in a thread of its own, so that nobody waits for a disk.
//
// The bytes that wait are bounded. An error, or an exception inside a store, is remembered, and the
// thread continues with the next object.
//
// Thread safety: all calls from any number of threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "kvcache/status.h"
#include "kvcache/store.h"

namespace kvcache::store {

// Bytes without the cost of zeros.
struct StoreBytes {
  std::unique_ptr<std::byte[]> data;
  std::size_t size = 0;

  // Errors: kOutOfMemory.
  static Result<StoreBytes> Make(std::size_t size);
  std::span<std::byte> span() const { return {data.get(), size}; }
};

class WriteBehind {
 public:
  // Writes an object.
  using Write = std::function<Status(const ObjectId& id, std::span<const std::byte> payload)>;
  // `store` must outlive it. At most `max_bytes` wait, or one object. Without `write` objects are put into the
  // store.
  WriteBehind(Store& store, std::int64_t max_bytes, Write write = nullptr);
  // Writes what waits.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  enum class Outcome : std::uint8_t {
    kQueued,
    kFull,  // the disk is slower than the caller: the object is not stored
  };
  // Takes an object to be written. Waits up to `max_wait_ms` for room. An object that waits already is
  // not taken again.
  Outcome Add(const ObjectId& id, StoreBytes payload, int max_wait_ms);
  // Calls a function in the thread, after the objects that wait now. It may use the store. Returns false
  // without memory.
  using Task = std::function<Status(Store& store)>;
  bool Do(Task task);
  // Forgets an object that waits. Returns when it is not being written.
  void Cancel(const ObjectId& id);
  // Returns whether the object waits to be written.
  bool Holds(const ObjectId& id) const;
  // Returns when nothing waits.
  void Flush();

  std::int64_t waiting_bytes() const;
  std::int64_t dropped() const;  // objects that were not stored, for want of room or after an error
  // Returns the first error since the last call, or an empty text.
  std::string TakeProblem();

 private:
  struct Object {
    ObjectId id;
    StoreBytes payload;
    Task task{};  // instead of the rest
  };

  void Run();
  void WriteOne(const Object& object);

  Store& store_;
  const Write write_;
  const std::int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable added_, written_;
  std::deque<Object> queue_;
  std::set<ObjectId> held_;  // in the queue, or being written
  std::int64_t bytes_ = 0;   // of the same
  int tasks_ = 0;            // that are not done
  std::int64_t dropped_ = 0;
  std::string problem_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvcache::store
