// Remembers the last requests that asked for an answer or failed, for the page: when, what, for whom, how far they
// are and how they ended. It sees each request through its reply (RecordedReply), whatever its route is.
//
// The log is bounded: the oldest requests go. Requests that ended well without a prompt, such as /tokenize, are not
// kept.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_keys.h"
#include "server/http/http_server.h"
#include "server/models/text_service.h"

namespace kvcache::server {

enum class RequestPhase : std::uint8_t {
  kQueued,      // it is read, or waits for its model
  kPrompt,      // its prompt is computed
  kGenerating,  // it has a token of its answer
  kDone,
  kFailed,
  kCancelled,  // its client left
};
std::string_view RequestPhaseName(RequestPhase phase);

struct RequestRecord {
  std::uint64_t number = 0;  // unique, ascending
  std::int64_t unix_ms = 0;  // when it came
  std::string route{};       // method and path
  std::string user{};        // the name; empty: none
  std::uint64_t salt = 0;    // of the user
  std::string model{};       // empty: it is not known
  RequestPhase phase = RequestPhase::kQueued;
  bool has_prompt = false;          // `reuse` is known
  ReuseReport reuse{};              // of the first choice
  PromptDifference difference{};    // of the first choice
  StopReason stop{};                // of the first choice, if it ended well
  std::int64_t generated = 0;       // tokens of all choices
  double first_token_seconds = -1;  // since it came; -1: there is none
  double seconds = 0.0;             // since it came, or what it took
  int status = 0;                   // of HTTP; 0: no answer has begun
  std::string error{};

  bool running() const { return phase < RequestPhase::kDone; }
};

// One request, for those who work on it.
class RequestEntry {
 public:
  explicit RequestEntry(RequestRecord record) : salt_(record.salt), record_(std::move(record)) {}

  void UseModel(const std::string& name);
  // Its prompt begins to be computed.
  void Start(const ReuseReport& reuse);
  // Takes no lock.
  void CountToken();
  // The first choice ends.
  void Finish(const TextResult& result);

  // The first end holds, except that an error after an answer began comes before it.
  void Answer(int status, std::string error);
  void Fail(const std::string& error);
  void End();
  void Cancel();

  RequestRecord Get() const;
  bool running() const;
  bool IsShownTo(const User& user) const { return user.is_admin || salt_ == user.salt; }
  // Returns whether it ended and nobody wants to see it.
  bool dull() const;

 private:
  using Clock = std::chrono::steady_clock;

  void EndAs(RequestPhase phase);
  double Seconds() const;

  const std::uint64_t salt_;
  const Clock::time_point began_ = Clock::now();
  mutable std::mutex mutex_;
  RequestRecord record_;  // guarded by mutex_
  std::atomic<std::int64_t> generated_{0};
  std::atomic<double> first_token_{-1.0};
};

class RequestLog {
 public:
  static constexpr std::size_t kMaxRequests = 1024;

  std::shared_ptr<RequestEntry> Begin(std::string_view method, std::string_view path,
                                      const User& user);
  // Forgets a request that is dull.
  void End(const std::shared_ptr<RequestEntry>& entry);
  // Returns the user's requests, for an administrator all, the oldest first: of those that ended and of those that
  // run at most `max` each, the newest.
  std::vector<RequestRecord> Last(const User& user, std::size_t max) const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;                            // guarded by mutex_
  std::deque<std::shared_ptr<RequestEntry>> entries_;  // guarded by mutex_
};

// Passes a reply on, and tells the log how it ends.
class RecordedReply final : public HttpReply {
 public:
  // Adds the request to the log, which must outlive it.
  RecordedReply(std::shared_ptr<HttpReply> reply, RequestLog& log, const HttpRequest& request,
                const User& user);
  ~RecordedReply() override;
  RecordedReply(const RecordedReply&) = delete;
  RecordedReply& operator=(const RecordedReply&) = delete;

  void Send(int status, std::string body, HttpHeaders headers) override;
  void Begin(std::string content_type) override;
  void Write(std::string bytes) override;
  void End() override;
  void OnGone(std::function<void()> gone) override;

  const std::shared_ptr<RequestEntry>& entry() const { return entry_; }

 private:
  std::shared_ptr<HttpReply> reply_;
  RequestLog& log_;
  std::shared_ptr<RequestEntry> entry_;
};

}  // namespace kvcache::server
