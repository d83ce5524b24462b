#include "server/models/embedding_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/seconds_since.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr double kAloneSeconds = 1.0;     // of a part if nobody else waits
constexpr double kMaxPartTokens = 65536;  // of a part
constexpr double kFirstRate = 2000.0;     // tokens a second, before any is measured
constexpr double kNewShare = 0.3;         // of the last part in the rate

class EmbeddingServiceImpl final : public EmbeddingService {
 public:
  EmbeddingServiceImpl(std::shared_ptr<Embedder> embedder, const EmbeddingServiceOptions& options)
      : embedder_(std::move(embedder)), options_(options), thread_([this] { Run(); }) {}

  ~EmbeddingServiceImpl() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      for (const JobPtr& job : jobs_) job->interrupt = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const Embedder& embedder() const override { return *embedder_; }
  const std::string& architecture() const override { return embedder_->info().architecture; }
  std::int64_t context() const override { return embedder_->info().max_input_tokens; }

  Result<EmbeddingId> Submit(EmbeddingRequest request) override {
    const auto job = std::make_shared<Job>();
    job->request = std::move(request);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return Stopping();
      if (std::ssize(jobs_) >= options_.max_running) {
        return Status(
            StatusCode::kCacheFull,
            StrCat(options_.max_running, " requests are running or waiting; try again later"));
      }
      job->id = ++last_id_;
      jobs_.push_back(job);
      ++counters_.requests;
    }
    changed_.notify_all();
    return EmbeddingId{job->id};
  }

  void Cancel(EmbeddingId request) override {
    {
      const std::lock_guard lock(mutex_);
      for (const JobPtr& job : jobs_) {
        if (job->id == static_cast<std::uint64_t>(request)) job->interrupt = true;
      }
    }
    changed_.notify_all();
  }

  void StopAccepting() override {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }

  void EndAll() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = ending_all_ = true;
      for (const JobPtr& job : jobs_) job->interrupt = true;
    }
    changed_.notify_all();
  }

  // The cache of an embedder is as large as one pass needs; none of it could be given back.
  void SetBudget(std::int64_t /*bytes*/, std::function<void()> done) override { done(); }

  ServiceCounters counters() const override {
    const std::lock_guard lock(mutex_);
    ServiceCounters now = counters_;
    now.running = std::ssize(jobs_);
    now.waiting = std::max<std::int64_t>(0, now.running - 1);
    now.held_bytes = held_bytes_;
    return now;
  }

  bool idle() const override {
    const std::lock_guard lock(mutex_);
    return jobs_.empty();
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Job {
    std::uint64_t id = 0;
    EmbeddingRequest request{};
    std::size_t next = 0;  // the first input that is not computed
    EmbeddingResult result{};
    std::atomic<bool> interrupt{false};
    const Clock::time_point began = Clock::now();
  };
  using JobPtr = std::shared_ptr<Job>;

  static Status Stopping() { return {StatusCode::kCancelled, "the server is stopping"}; }

  void Run() {
    held_bytes_ = embedder_->MemoryBytes();
    while (const JobPtr job = Next()) {
      const Status status = Advance(*job);
      const bool is_done = !status.ok() || job->next == job->request.inputs.size();
      if (is_done) {
        End(*job, status);
      } else {
        const std::lock_guard lock(mutex_);  // the next request's turn
        std::rotate(jobs_.begin(), jobs_.begin() + 1, jobs_.end());
      }
    }
  }

  // Returns the request whose turn it is, first one that was cancelled. Null: the service ends.
  JobPtr Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return nullptr;
    const auto cancelled = std::find_if(jobs_.begin(), jobs_.end(),
                                        [](const JobPtr& job) { return job->interrupt.load(); });
    if (cancelled != jobs_.end()) std::iter_swap(cancelled, jobs_.begin());
    return jobs_.front();
  }

  // Computes the next part of a request.
  Status Advance(Job& job) {
    if (job.interrupt) return {StatusCode::kCancelled, "the request was cancelled"};
    const std::size_t count = PartOf(job);
    const auto part = std::span(job.request.inputs).subspan(job.next, count);
    if (options_.turns != nullptr) options_.turns->BeginBatch();
    const auto start = Clock::now();
    const std::int64_t before = job.result.tokens;
    Status status = Guarded(job, part);
    const double seconds = SecondsSince(start);
    if (options_.turns != nullptr) options_.turns->EndBatch();
    if (!status.ok()) return status;
    job.next += count;
    const double rate = static_cast<double>(job.result.tokens - before) / std::max(seconds, 1e-6);
    rate_ += kNewShare * (rate - rate_);
    return status;
  }

  Status Guarded(Job& job, std::span<const std::vector<std::int32_t>> part) {
    try {
      return Compute(job, part);
    } catch (const std::exception& error) {  // std::bad_alloc
      return {StatusCode::kOutOfMemory, StrCat("cannot compute the inputs: ", error.what())};
    }
  }

  Status Compute(Job& job, std::span<const std::vector<std::int32_t>> part) {
    const EmbedOptions options{.normalize = job.request.normalize,
                               .dimensions = job.request.dimensions,
                               .interrupt = &job.interrupt};
    EmbeddingResult& result = job.result;
    if (job.request.ranks) {
      KVCACHE_ASSIGN_OR_RETURN(const Ranks ranks, embedder_->Rank(part, options));
      result.dimensions = 1;
      result.values.insert(result.values.end(), ranks.scores.begin(), ranks.scores.end());
      Count(result, ranks.tokens, ranks.reused_tokens);
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(const Embeddings embeddings, embedder_->Embed(part, options));
    result.dimensions = embeddings.dimensions;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::span<const float> vector = embeddings.vector(i);
      result.values.insert(result.values.end(), vector.begin(), vector.end());
    }
    Count(result, embeddings.tokens, embeddings.reused_tokens);
    return Status::Ok();
  }

  void Count(EmbeddingResult& result, std::int64_t tokens, std::int64_t reused) {
    result.tokens += tokens;
    result.reused_tokens += reused;
    const std::lock_guard lock(mutex_);
    counters_.evaluated_tokens += tokens - reused;
    counters_.computed_tokens += tokens - reused;
    counters_.reused_tokens += reused;
  }

  // Returns how many inputs the next part has: one at least.
  std::size_t PartOf(const Job& job) const {
    bool is_alone = options_.turns == nullptr || !options_.turns->HasSteps();
    {
      const std::lock_guard lock(mutex_);
      is_alone = is_alone && jobs_.size() == 1;
    }
    const double seconds = is_alone ? kAloneSeconds : options_.step_ms / 1000.0;
    const double most = std::min(rate_ * seconds, kMaxPartTokens);
    const auto& inputs = job.request.inputs;
    double tokens = 0.0;
    std::size_t count = 0;
    while (job.next + count < inputs.size()) {
      tokens += static_cast<double>(inputs[job.next + count].size());
      if (count > 0 && tokens > most) break;
      ++count;
    }
    return count;
  }

  void End(Job& job, Status status) {
    job.result.status = std::move(status);
    job.result.total_ms = SecondsSince(job.began) * 1000.0;
    bool ending_all = false;
    {
      const std::lock_guard lock(mutex_);
      ending_all = ending_all_;
      const bool ok = job.result.status.ok();
      ++counters_.ended[ok ? static_cast<std::size_t>(StopReason::kEndOfText) : kFailedEnd];
      counters_.request.Add(job.result.total_ms / 1000.0);
    }
    if (job.interrupt && ending_all) job.result.status = Stopping();
    const auto done = std::exchange(job.request.on_done, nullptr);
    try {
      done(job.result);
    } catch (const std::exception&) {  // without memory; the request's reply ends it
    }
    held_bytes_ = embedder_->MemoryBytes();
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [&](const JobPtr& one) { return one.get() == &job; });
  }

  const std::shared_ptr<Embedder> embedder_;
  const EmbeddingServiceOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<JobPtr> jobs_;  // the front's turn is next
  ServiceCounters counters_;
  std::uint64_t last_id_ = 0;
  bool stopping_ = false, ending_ = false, ending_all_ = false;
  std::atomic<std::int64_t> held_bytes_{0};
  double rate_ = kFirstRate;  // tokens a second; on the service's thread
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace

std::unique_ptr<EmbeddingService> EmbeddingService::Make(std::shared_ptr<Embedder> embedder,
                                                         const EmbeddingServiceOptions& options) {
  return std::make_unique<EmbeddingServiceImpl>(std::move(embedder), options);
}

}  // namespace kvcache::server
