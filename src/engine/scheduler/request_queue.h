// The requests that wait for a sequence: new ones, and those that were parked.
//
//   Submit, Cancel ─► inbox ─► Update ─► queue ─► Take ─► …
//   any thread                 the engine's thread
//
// Thread safety: Submit, Cancel, Wake and unfinished() from any thread; everything else from the engine's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "engine/scheduler/job.h"

namespace kvcache {

class RequestQueue {
 public:
  // `engine` must outlive it. Its passes have at most `max_tokens` tokens.
  RequestQueue(const Engine& engine, int max_tokens) : engine_(engine), max_tokens_(max_tokens) {}

  // Adds a request. Errors: those of CheckRequest.
  Result<RequestId> Submit(ScheduledRequest request);
  void Cancel(RequestId request);
  void Wake();
  // Returns the requests that have not ended.
  std::size_t unfinished() const;

  // Waits until something was submitted or cancelled, or `stop` is true and Wake was called.
  void Wait(const std::atomic<bool>& stop);
  // Moves new requests to the queue, with room to put `live` others back. Returns which ones were cancelled.
  std::vector<RequestId> Update(std::size_t live);
  // Takes a request out; null if it does not wait.
  JobPtr Take(RequestId request);
  JobPtr Take(std::size_t index);
  // Puts a request back to the front. Allocates nothing within what Update left room for.
  void PutBack(JobPtr job);
  // Counts a request that has ended.
  void CountEnd();

  // Returns the queue, in order of arrival.
  std::span<const JobPtr> jobs() const { return waiting_; }
  // Returns how many wait, with those in the inbox.
  std::size_t size() const;

 private:
  const Engine& engine_;
  const int max_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<JobPtr> inbox_;         // guarded by mutex_
  std::vector<RequestId> cancelled_;  // guarded by mutex_
  std::uint64_t next_id_ = 1;         // guarded by mutex_
  std::size_t unfinished_ = 0;        // guarded by mutex_
  std::vector<JobPtr> waiting_;       // the engine's thread
};

}  // namespace kvcache
