#include "store/tiers/write_behind.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::store {

Result<StoreBytes> StoreBytes::Make(std::size_t size) {
  StoreBytes bytes;
  bytes.data.reset(new (std::nothrow) std::byte[size]);
  if (bytes.data == nullptr) {
    return OutOfMemory(StrCat("no memory for ", size, " bytes to store"));
  }
  bytes.size = size;
  return bytes;
}

WriteBehind::WriteBehind(Store& store, std::int64_t max_bytes, Write write)
    : store_(store),
      write_(write
                 ? std::move(write)
                 : [&store](const ObjectId& id,
                            std::span<const std::byte> payload) { return store.Put(id, payload); }),
      max_bytes_(max_bytes) {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    stop_ = true;  // nothing is stored
    problem_ = StrCat("cannot start a thread: ", error.what());
  }
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  added_.notify_all();
  if (thread_.joinable()) thread_.join();
}

WriteBehind::Outcome WriteBehind::Add(const ObjectId& id, StoreBytes payload, int max_wait_ms) {
  const auto size = static_cast<std::int64_t>(payload.size);
  std::unique_lock lock(mutex_);
  try {
    if (held_.contains(id)) return Outcome::kQueued;
    const bool has_room = written_.wait_for(lock, std::chrono::milliseconds(max_wait_ms), [&] {
      return bytes_ == 0 || bytes_ + size <= max_bytes_;
    });
    if (held_.contains(id)) return Outcome::kQueued;  // another thread queued it meanwhile
    if (has_room && !stop_) {
      held_.insert(id);
      queue_.push_back({.id = id, .payload = std::move(payload), .task = {}});
      bytes_ += size;
      added_.notify_one();
      return Outcome::kQueued;
    }
  } catch (const std::bad_alloc&) {
    held_.erase(id);
  }
  ++dropped_;
  return Outcome::kFull;
}

bool WriteBehind::Do(Task task) {
  try {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    queue_.push_back({.id = {}, .payload = {}, .task = std::move(task)});
    ++tasks_;
    added_.notify_one();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void WriteBehind::Cancel(const ObjectId& id) {
  std::unique_lock lock(mutex_);
  const auto waits = std::find_if(queue_.begin(), queue_.end(), [&](const Object& object) {
    return !object.task && object.id == id;
  });
  if (waits != queue_.end()) {
    bytes_ -= static_cast<std::int64_t>(waits->payload.size);
    queue_.erase(waits);
    held_.erase(id);
    written_.notify_all();
  }
  written_.wait(lock, [&] { return !held_.contains(id); });
}

bool WriteBehind::Holds(const ObjectId& id) const {
  const std::lock_guard lock(mutex_);
  return held_.contains(id);
}

void WriteBehind::Flush() {
  std::unique_lock lock(mutex_);
  written_.wait(lock, [&] { return held_.empty() && tasks_ == 0; });
}

std::int64_t WriteBehind::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::int64_t WriteBehind::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::string WriteBehind::TakeProblem() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problem_, {});
}

void WriteBehind::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    added_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Object object = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    WriteOne(object);
    object.payload.data.reset();
    lock.lock();
    if (object.task) {
      --tasks_;
    } else {
      held_.erase(object.id);
    }
    bytes_ -= static_cast<std::int64_t>(object.payload.size);
    written_.notify_all();
  }
}

void WriteBehind::WriteOne(const Object& object) {
  Status status;
  try {
    status = object.task ? object.task(store_) : write_(object.id, object.payload.span());
  } catch (const std::exception& error) {
    status = {StatusCode::kInternal, error.what()};
  } catch (...) {
    status = {StatusCode::kInternal, "an unknown exception"};
  }
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  ++dropped_;
  if (problem_.empty()) problem_ = status.message();
}

}  // namespace kvcache::store
