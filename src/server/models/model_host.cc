#include "server/models/model_host.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/memory_plan.h"
#include "server/log.h"

namespace kvcache::server {
namespace {

using Clock = std::chrono::steady_clock;

// Forever is 95 years here: the clock has no room for much more.
constexpr double kMaxSeconds = 3e9;

Clock::time_point After(Clock::time_point time, double seconds) {
  const std::chrono::duration<double> bounded(std::min(seconds, kMaxSeconds));
  return time + std::chrono::duration_cast<Clock::duration>(bounded);
}

class Host final : public ModelHost {
 public:
  Host(std::unique_ptr<ModelSource> source, ModelHostOptions options)
      : source_(std::move(source)), options_(std::move(options)), thread_([this] { Run(); }) {}

  ~Host() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    waiting_.clear();
    // Requests that are dropped give their leases back, so that entries end after all services.
    for (Entry& entry : entries_) entry.service.reset();
    try {
      for (Entry& entry : entries_) Flush(entry);
    } catch (const std::exception&) {  // without memory; what was not written is computed again
    }
  }

  ModelSource& source() override { return *source_; }

  void AcquireService(const ServedModel& model, std::optional<double> stay_seconds,
                      std::function<void(Result<ServiceLease>)> ready) override {
    PreparedLease prepared(*this, model);
    std::unique_lock lock(mutex_);
    if (stopping_) {
      lock.unlock();
      return ready(Status(StatusCode::kCancelled, "the server is stopping"));
    }
    if (Entry* const entry = Find(model); entry != nullptr && !entry->leaving) {
      ServiceLease lease = MakeLease(*entry, std::move(prepared), stay_seconds);
      lock.unlock();
      return ready(std::move(lease));
    }
    if (waiting_.size() >= options_.max_waiting) {
      lock.unlock();
      return ready(
          Status(StatusCode::kCacheFull,
                 StrCat(options_.max_waiting, " requests wait for their models; try again later")));
    }
    waiting_.push_back({std::move(prepared), stay_seconds, std::move(ready)});
    lock.unlock();
    changed_.notify_all();
  }

  void Unload(const ServedModel& model) override {
    {
      const std::lock_guard lock(mutex_);
      if (Entry* const entry = Find(model); entry != nullptr) entry->stay_seconds = 0.0;
    }
    changed_.notify_all();
  }

  std::vector<LoadedModel> Loaded() override {
    std::vector<LoadedModel> loaded;  // without memory, its leases end after the lock
    const std::lock_guard lock(mutex_);
    std::vector<Entry*> entries;
    for (Entry& entry : entries_) {
      if (entry.service != nullptr && !entry.leaving) entries.push_back(&entry);
    }
    std::sort(entries.begin(), entries.end(),
              [](const Entry* a, const Entry* b) { return a->asked > b->asked; });
    const auto now = Clock::now();
    for (Entry* const entry : entries) {
      const double unused =
          entry->users > 0 ? 0.0 : std::chrono::duration<double>(now - entry->used).count();
      loaded.push_back({entry->model, nullptr, nullptr, entry->stay_seconds - unused});
      auto back = std::make_shared<Returned>(*this);
      ++entry->leases;
      back->entry = entry;
      loaded.back().service = ServiceLease(std::move(back), entry->service.get());
      if (entry->model.embeds) continue;
      loaded.back().lease = std::static_pointer_cast<TextService>(loaded.back().service);
    }
    return loaded;
  }

  ServiceCounters counters() const override {
    const std::lock_guard lock(mutex_);
    ServiceCounters sum = gone_;
    for (const Entry& entry : entries_) {
      if (entry.service != nullptr) sum += entry.service->counters();
    }
    return sum;
  }

  bool idle() const override {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && !loading_ &&
           std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
             return entry.service == nullptr || entry.service->idle();
           });
  }

  void StopAccepting() override {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Entry& entry : entries_) {
      if (entry.service != nullptr) entry.service->StopAccepting();
    }
  }

  void EndAll() override {
    std::deque<Waiting> refused;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      refused.swap(waiting_);
      for (Entry& entry : entries_) {
        if (entry.service != nullptr) entry.service->EndAll();
      }
    }
    for (const Waiting& waiting : refused) {
      waiting.ready(Status(StatusCode::kCancelled, "the server is stopping"));
    }
  }

 private:
  // A loaded model. Its place in memory stays until nobody holds a lease.
  struct Entry {
    ServedModel model;                        // as it was asked for last
    std::shared_ptr<Engine> engine{};         // outlives the service; null: the model embeds
    std::unique_ptr<ModelService> service{};  // null: is being ended
    double stay_seconds = kForever;
    std::int64_t min_budget = 0;
    int leases = 0;            // all
    int users = 0;             // of them, those of requests
    bool leaving = false;      // gets no more requests
    std::uint64_t asked = 0;   // when, as a number that grows
    Clock::time_point used{};  // when the last request gave its lease back
  };

  // Gives a lease back at its end.
  struct Returned {
    explicit Returned(Host& of) : host(of) {}
    ~Returned() {
      if (entry != nullptr) host.Return(*entry, is_use);
    }
    Returned(const Returned&) = delete;
    Returned& operator=(const Returned&) = delete;

    Host& host;
    Entry* entry = nullptr;  // null: there is no lease
    bool is_use = false;
  };

  // What a lease needs: made before the lock is taken, so that nothing fails in between.
  struct PreparedLease {
    PreparedLease(Host& host, ServedModel asked)
        : model(std::move(asked)), back(std::make_shared<Returned>(host)) {}

    ServedModel model;
    std::shared_ptr<Returned> back;
  };

  struct Waiting {
    PreparedLease prepared;
    std::optional<double> stay_seconds;
    std::function<void(Result<ServiceLease>)> ready;
    // The model, if it is open and waits for its part of the budget: to generate, or to embed.
    std::shared_ptr<Engine> engine{};
    std::shared_ptr<Embedder> embedder{};
    std::int64_t min_budget = 0;
    double seconds = 0.0;  // that opening it took
  };

  Entry* Find(const ServedModel& model) {
    const std::string key = model.key();
    for (Entry& entry : entries_) {
      if (entry.service != nullptr && entry.model.key() == key) return &entry;
    }
    return nullptr;
  }

  ServiceLease MakeLease(Entry& entry, PreparedLease prepared, std::optional<double> stay_seconds) {
    entry.model = std::move(prepared.model);
    if (stay_seconds) entry.stay_seconds = *stay_seconds;
    entry.asked = ++asked_;
    ++entry.leases;
    ++entry.users;
    prepared.back->entry = &entry;
    prepared.back->is_use = true;
    return ServiceLease(std::move(prepared.back), entry.service.get());
  }

  // May be called on any thread, also on the service's own.
  void Return(Entry& entry, bool used) {
    {
      const std::lock_guard lock(mutex_);
      --entry.leases;
      if (used && --entry.users == 0) entry.used = Clock::now();
      if (entry.leases > 0) return;
    }
    changed_.notify_all();
  }

  static Clock::time_point EndOf(const Entry& entry) {
    return After(entry.used, entry.stay_seconds);
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      try {
        if (EndOne(lock) || ServeWaiting(lock)) continue;
      } catch (const std::exception&) {  // the request that found no memory is given up
        if (!lock.owns_lock()) lock.lock();
        loading_ = false;
      }
      // A model that stays forever still has an end that the clock can name.
      auto next = Clock::now() + std::chrono::hours(1);
      for (const Entry& entry : entries_) {
        if (entry.users == 0) next = std::min(next, EndOf(entry));
      }
      changed_.wait_until(lock, next);
    }
  }

  // Unloads a model whose time has come. Returns whether there was one.
  bool EndOne(std::unique_lock<std::mutex>& lock) {
    const auto now = Clock::now();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const bool is_over = entry->users == 0 && now >= EndOf(*entry);
      if (is_over) entry->leaving = true;
      if (!entry->leaving || entry->leases > 0) continue;
      gone_ += entry->service->counters().WithoutNow();
      std::unique_ptr<ModelService> service = std::move(entry->service);
      lock.unlock();
      LogEvent(LogLevel::kInfo, "model let go", {{"model", entry->model.name}});
      service.reset();
      Flush(*entry);
      entry->engine.reset();
      lock.lock();
      entries_.erase(entry);
      Share(PartBeside(nullptr));
      return true;
    }
    return false;
  }

  static void Flush(const Entry& entry) {
    if (entry.engine == nullptr || entry.engine->prefix_store() == nullptr) return;
    const std::string lost = entry.engine->FlushStore();
    if (!lost.empty()) LogEvent(LogLevel::kError, "not stored", {{"reason", OneLine(lost)}});
  }

  // Gives the first request that waits its model, or begins to make room. Returns whether it did anything.
  bool ServeWaiting(std::unique_lock<std::mutex>& lock) {
    if (waiting_.empty()) return false;
    if (Entry* const entry = Find(waiting_.front().prepared.model); entry != nullptr) {
      if (entry->leaving) return false;  // it comes back after it has left
      Waiting waiting = TakeFirst();
      ServiceLease lease = MakeLease(*entry, std::move(waiting.prepared), waiting.stay_seconds);
      lock.unlock();
      Give(waiting, std::move(lease));
      lock.lock();
      return true;
    }
    if (Entry* const last = MustLeave(waiting_.front()); last != nullptr) {
      return !std::exchange(last->leaving, true);
    }
    Waiting waiting = TakeFirst();
    loading_ = true;
    lock.unlock();
    std::list<Entry> loaded(1);
    loaded.front().model = waiting.prepared.model;
    loaded.front().stay_seconds = options_.stay_seconds;
    const bool was_open = waiting.engine != nullptr || waiting.embedder != nullptr;
    Status status = Open(waiting);
    lock.lock();
    if (stopping_) status = {StatusCode::kCancelled, "the server is stopping"};
    if (status.ok() && !was_open && MustLeave(waiting) != nullptr) {
      waiting_.push_front(std::move(waiting));
      loading_ = false;
      return true;
    }
    if (status.ok()) {
      const std::int64_t part = PartBeside(&waiting);
      const std::vector<std::future<void>> shared = Share(part);
      lock.unlock();
      for (const std::future<void>& done : shared) done.wait();
      loaded.front().engine = std::move(waiting.engine);
      loaded.front().min_budget = waiting.min_budget;
      status = Load(loaded.front(), std::move(waiting.embedder), part, waiting.seconds);
      lock.lock();
      if (!status.ok()) Share(PartBeside(nullptr));
    }
    loading_ = false;
    ServiceLease lease;
    if (status.ok()) {
      if (stopping_) loaded.front().service->StopAccepting();
      entries_.splice(entries_.end(), loaded);
      lease = MakeLease(entries_.back(), std::move(waiting.prepared), waiting.stay_seconds);
    }
    lock.unlock();
    Give(waiting, status.ok() ? Result<ServiceLease>(std::move(lease)) : status);
    lock.lock();
    return true;
  }

  Waiting TakeFirst() {
    Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    return waiting;
  }

  static void Give(const Waiting& waiting, Result<ServiceLease> result) {
    try {
      waiting.ready(std::move(result));
    } catch (const std::exception&) {
      return;  // the request's reply ends it
    }
  }

  // Returns the model that has to leave before another one may come, or null.
  Entry* MustLeave(const Waiting& next) {
    if (entries_.empty()) return nullptr;
    std::int64_t bytes = next.prepared.model.bytes;
    std::int64_t min_budget = next.prepared.model.embeds ? 0 : next.min_budget;
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      bytes += entry.model.bytes;
      if (!entry.model.embeds) min_budget = std::max(min_budget, entry.min_budget);
      if (entry.leaving) return &entry;
      if (oldest == nullptr || entry.asked < oldest->asked) oldest = &entry;
    }
    const bool fits = options_.max_bytes == 0 || bytes <= options_.max_bytes;
    const bool has_part =
        budget() == 0 || (EmbedderBytes(&next) <= budget() && min_budget <= PartBeside(&next));
    return fits && has_part && entries_.size() < options_.max_loaded ? nullptr : oldest;
  }

  std::int64_t budget() const { return options_.scheduler.budget_bytes; }

  // Returns what the models that embed take of the budget: those that are loaded, and `next`, which may be null.
  std::int64_t EmbedderBytes(const Waiting* next) const {
    std::int64_t bytes = next != nullptr && next->prepared.model.embeds ? next->min_budget : 0;
    for (const Entry& entry : entries_) {
      if (entry.model.embeds && entry.service != nullptr) bytes += entry.min_budget;
    }
    return bytes;
  }

  // Returns the part of the budget that each model which generates has beside `next`, which may be null: an equal one of
  // what embedders leave. 0: there is no budget.
  std::int64_t PartBeside(const Waiting* next) const {
    if (budget() == 0) return 0;
    std::int64_t models = next != nullptr && !next->prepared.model.embeds ? 1 : 0;
    for (const Entry& entry : entries_) {
      if (!entry.model.embeds && entry.service != nullptr) ++models;
    }
    const std::int64_t left = std::max<std::int64_t>(1, budget() - EmbedderBytes(next));
    return MemoryPlan::PartOf(left, std::max<std::int64_t>(1, models));
  }

  // Gives each loaded model that generates its part of the budget. The futures are ready when the models have given back
  // what they can. Without memory for that, a model keeps the part that it has.
  std::vector<std::future<void>> Share(std::int64_t part) noexcept {
    std::vector<std::future<void>> done;
    if (budget() == 0) return done;
    for (Entry& entry : entries_) {
      if (entry.service == nullptr) continue;
      try {
        const auto promise = std::make_shared<std::promise<void>>();
        std::future<void> future = promise->get_future();
        done.reserve(done.size() + 1);
        entry.service->SetBudget(part, [promise] { promise->set_value(); });
        done.push_back(std::move(future));
      } catch (const std::exception&) {
        continue;
      }
    }
    return done;
  }

  // Opens the request's model, if it is not open.
  Status Open(Waiting& waiting) {
    if (waiting.engine != nullptr || waiting.embedder != nullptr) return Status::Ok();
    const ServedModel& model = waiting.prepared.model;
    const auto start = Clock::now();
    const Status status = Guard(model, [&]() -> Status {
      if (model.embeds) {
        KVCACHE_ASSIGN_OR_RETURN(waiting.embedder, source_->OpenEmbedder(model));
        if (budget() > 0) waiting.min_budget = waiting.embedder->MemoryBytes();
        return Status::Ok();
      }
      KVCACHE_ASSIGN_OR_RETURN(auto engine, source_->Open(model));
      KVCACHE_RETURN_IF_ERROR(Scheduler::CheckBudget(*engine, budget()));  // before others go
      if (engine->options().releases_memory && budget() > 0) {
        waiting.min_budget = Scheduler::MinBudget(*engine);
      }
      waiting.engine = std::move(engine);
      return Status::Ok();
    });
    waiting.seconds = SecondsSince(start);
    if (!status.ok()) LogNotLoaded(model, status);
    return status;
  }

  // Makes the service of an open model, with its part of the budget. `seconds`: that opening it took.
  Status Load(Entry& entry, std::shared_ptr<Embedder> embedder, std::int64_t part, double seconds) {
    const auto start = Clock::now();
    const std::string machine = embedder != nullptr ? embedder->machine() : entry.engine->machine();
    const Status status = Guard(entry.model, [&]() -> Status {
      if (embedder != nullptr) {
        entry.service =
            EmbeddingService::Make(std::move(embedder), {.max_running = options_.max_running,
                                                         .step_ms = options_.scheduler.step_ms,
                                                         .turns = &turns_});
        KeepScales(entry);
        return Status::Ok();
      }
      SchedulerOptions options = options_.scheduler;
      options.budget_bytes = part;
      options.turns = &turns_;
      KVCACHE_ASSIGN_OR_RETURN(auto text,
                               TextService::Make(*entry.engine, options_.max_running, options,
                                                 entry.model.chat_template, options_.dialect));
      entry.service = std::move(text);
      KeepScales(entry);
      return Status::Ok();
    });
    if (!status.ok()) {
      LogNotLoaded(entry.model, status);
      return status;
    }
    has_loaded_ = true;
    LogEvent(LogLevel::kInfo, "model loaded",
             {{"model", entry.model.name},
              {"seconds", seconds + SecondsSince(start)},
              {"machine", machine}});
    return status;
  }

  // Gives the service of a model the scales that an earlier one, or one for another use, had.
  void KeepScales(Entry& entry) {
    if (entry.service->adapters().empty()) return;
    std::shared_ptr<AdapterScales>& kept = scales_[entry.model.key_of_both_uses()];
    if (kept == nullptr) kept = entry.service->scales();
    entry.service->ShareScales(kept);
  }

  // A server does not start without its first model, and says why itself.
  void LogNotLoaded(const ServedModel& model, const Status& status) const {
    if (!has_loaded_) return;
    LogEvent(LogLevel::kError, "model not loaded",
             {{"model", model.name}, {"error", status.message()}});
  }

  // Returns what `load` returns, or throws as an error.
  template <typename Function>
  static Status Guard(const ServedModel& model, const Function& load) {
    try {
      return load();
    } catch (const std::exception& error) {  // std::bad_alloc
      return {StatusCode::kOutOfMemory,
              StrCat("cannot load ", Quoted(model.name), ": ", error.what())};
    }
  }

  const std::unique_ptr<ModelSource> source_;
  const ModelHostOptions options_;
  ComputeTurns turns_;  // of all models
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::list<Entry> entries_;
  std::deque<Waiting> waiting_;
  ServiceCounters gone_;  // of models that were unloaded
  std::uint64_t asked_ = 0;
  bool loading_ = false, stopping_ = false, ending_ = false;
  bool has_loaded_ = false;  // any model; used on the host's thread
  // Of adapters of all models that were ever loaded, by key; used on the host's thread.
  std::map<std::string, std::shared_ptr<AdapterScales>> scales_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<ModelHost> ModelHost::Make(std::unique_ptr<ModelSource> source,
                                           ModelHostOptions options) {
  return std::make_unique<Host>(std::move(source), std::move(options));
}

}  // namespace kvcache::server
