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

constexpr double kAloneSeconds = 1.0;           // of a part if nobody else waits
constexpr double kMaxPartTokens = 65536;        // of a part
constexpr double kMaxPartBeside = 1024;         // beside others: two passes
constexpr double kFirstRate = 2000.0;           // tokens a second, before any is measured
constexpr double kNewShare = 0.3;               // of the last part in the rate
constexpr std::int64_t kMeasuredTokens = 64;    // fewer say nothing of the rate
constexpr std::size_t kLeastSharedTokens = 64;  // fewer are computed again (SharingLimits)

// The turn of the embeddings, while others generate. Its end gives the processors back.
class BatchTurn {
 public:
  BatchTurn(ComputeTurns* turns, double most_seconds, const std::function<double()>& clock)
      : turns_(turns), most_seconds_(most_seconds), clock_(clock) {
    if (turns_ != nullptr) turns_->BeginBatch();
    began_ = Now();
  }
  ~BatchTurn() {
    if (turns_ != nullptr) turns_->EndBatch();
  }
  BatchTurn(const BatchTurn&) = delete;
  BatchTurn& operator=(const BatchTurn&) = delete;

  // Lets others compute, if this turn has taken its time.
  void MayPass() {
    if (turns_ == nullptr || Now() - began_ < most_seconds_) return;
    before_ += Now() - began_;
    turns_->EndBatch();
    turns_->BeginBatch();
    began_ = Now();
  }
  // Returns the seconds in which this one computed.
  double seconds() const { return before_ + Now() - began_; }

 private:
  double Now() const { return clock_ ? clock_() : SecondsSince({}); }

  ComputeTurns* const turns_;
  const double most_seconds_;
  const std::function<double()>& clock_;
  double began_ = 0.0;
  double before_ = 0.0;  // seconds of earlier turns
};

// Returns the bytes of a request's tokens and of its values.
std::int64_t BytesOf(const EmbeddingRequest& request, const EmbedderInfo& info) {
  const int dimensions = request.dimensions > 0 ? request.dimensions : info.dimensions;
  const int values = request.ranks ? 1 : dimensions;
  std::int64_t bytes = std::ssize(request.inputs) * values * std::int64_t{sizeof(float)};
  for (const std::vector<std::int32_t>& input : request.inputs) {
    bytes += std::ssize(input) * std::int64_t{sizeof(std::int32_t)};
  }
  return bytes;
}

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
  std::span<const AdapterInfo> adapters() const override { return embedder_->adapters(); }

  Result<EmbeddingId> Submit(EmbeddingRequest request) override {
    const auto job = std::make_shared<Job>();
    job->request = std::move(request);
    job->bytes = BytesOf(job->request, embedder_->info());
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return Stopping();
      if (std::ssize(jobs_) >= options_.max_running) {
        return Status(
            StatusCode::kCacheFull,
            StrCat(options_.max_running, " requests are running or waiting; try again later"));
      }
      if (!jobs_.empty() && jobs_bytes_ + job->bytes > options_.max_bytes) {
        return Status(
            StatusCode::kCacheFull,
            StrCat("requests of ", jobs_bytes_, " bytes are running or waiting; ", job->bytes,
                   " more are above ", options_.max_bytes, "; try again later"));
      }
      jobs_bytes_ += job->bytes;
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
    std::int64_t bytes = 0;
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
    const std::int64_t before = Computed(job);
    BatchTurn turn(options_.turns, options_.step_ms / 1000.0, options_.clock);
    KVCACHE_RETURN_IF_ERROR(Guarded(job, part, turn));
    job.next += count;
    Learn(Computed(job) - before, turn.seconds());
    return Status::Ok();
  }

  static std::int64_t Computed(const Job& job) {
    return job.result.tokens - job.result.reused_tokens;
  }

  void Learn(std::int64_t computed, double seconds) {
    if (computed < kMeasuredTokens) return;
    const double rate = static_cast<double>(computed) / std::max(seconds, 1e-6);
    rate_ += kNewShare * (rate - rate_);
  }

  Status Guarded(Job& job, std::span<const std::vector<std::int32_t>> part, BatchTurn& turn) {
    try {
      return Compute(job, part, turn);
    } catch (const std::exception& error) {  // std::bad_alloc
      return {StatusCode::kOutOfMemory, StrCat("cannot compute the inputs: ", error.what())};
    }
  }

  Status Compute(Job& job, std::span<const std::vector<std::int32_t>> part, BatchTurn& turn) {
    const EmbedOptions options{.normalize = job.request.normalize,
                               .dimensions = job.request.dimensions,
                               .adapters = job.request.adapters,
                               .first_input = job.next,
                               .interrupt = &job.interrupt,
                               .between_passes = [&turn] { turn.MayPass(); }};
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
    const double most = std::min(rate_ * seconds, is_alone ? kMaxPartTokens : kMaxPartBeside);
    const auto inputs = std::span(job.request.inputs).subspan(job.next);
    auto tokens = static_cast<double>(inputs[0].size());
    std::size_t count = 1;
    for (; count < inputs.size(); ++count) {
      tokens += static_cast<double>(TokensBehind(inputs[count - 1], inputs[count]));
      if (tokens > most) break;
    }
    return count;
  }

  // Returns how many tokens of an input are about to be computed if the one before it is in the same part.
  std::size_t TokensBehind(std::span<const std::int32_t> before,
                           std::span<const std::int32_t> input) const {
    const auto fork = std::ranges::mismatch(before, input).in2;
    const auto shared = static_cast<std::size_t>(fork - input.begin());
    if (shared == input.size() && shared == before.size()) return 0;
    const bool is_reused = embedder_->info().is_causal && shared >= kLeastSharedTokens;
    return input.size() - (is_reused ? shared : 0);
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
    jobs_bytes_ -= job.bytes;
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
  std::int64_t jobs_bytes_ = 0;
  bool stopping_ = false, ending_ = false, ending_all_ = false;
  std::atomic<std::int64_t> held_bytes_{0};
  double rate_ = kFirstRate;  // tokens a second; on the service's thread
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace

std::unique_ptr<EmbeddingService> EmbeddingService::Make(std::shared_ptr<Embedder> embedder,
                                                         const EmbeddingServiceOptions& options) {
  const std::span<const AdapterInfo> adapters = embedder->adapters();
  auto scales = std::make_shared<AdapterScales>(adapters);
  auto service = std::make_unique<EmbeddingServiceImpl>(std::move(embedder), options);
  service->ShareScales(std::move(scales));
  return service;
}

}  // namespace kvcache::server
