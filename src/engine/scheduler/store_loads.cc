#include "engine/scheduler/store_loads.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes that one step restores, so that other requests need not wait long for their next token. A step
// restores at least one piece.
constexpr std::int64_t kMaxBytesPerStep = std::int64_t{64} << 20;
// How long a step waits for a store if there is nothing else to do.
constexpr std::chrono::milliseconds kMaxWait{5};
// How long a request that is alone waits for room in the store's queue.
constexpr int kMaxWaitAloneMs = 2000;

}  // namespace

StoreLoads::StoreLoads(Engine& engine, const SchedulerOptions& options, JobPrefixes& prefixes,
                       MemoryBudget& memory, SchedulerStats& stats)
    : engine_(engine),
      max_wait_ms_(options.one_at_a_time ? kMaxWaitAloneMs : 0),
      prefixes_(prefixes),
      memory_(memory),
      stats_(stats) {
  if (PrefixStore* const store = engine.prefix_store(); store != nullptr) {
    loader_ = std::make_unique<StoreLoader>(*store);
  }
}

void StoreLoads::Begin(Job& job, std::vector<Position> captures) {
  job.store = {.began = Clock::now(), .is_first = !job.started, .captures = std::move(captures)};
  const bool fits = static_cast<Position>(job.tokens.size()) <= engine_.context();
  if (loader_ != nullptr && fits && !job.shifted() && HoldsTwice(job)) {
    Start(job, static_cast<Position>(job.tokens.size()) - 1);
  }
  if (!job.store.is_loading()) {
    job.captures.Schedule(engine_.cache(), job.sequence, std::move(job.store.captures));
  }
}

void StoreLoads::BeginText(Job& job) {
  job.store = {.began = Clock::now(), .is_first = !job.started};
  if (loader_ == nullptr) return;
  job.store.load = loader_->Begin({.tokens = job.request.prompt,
                                   .salt = job.salt,
                                   .max = job.result.reuse.prompt,
                                   .computes_per_s = computes_per_s_});
}

// A whole state takes cells of its own, also for the tokens that the request has from its prefix, which stays.
// Returns whether the pool holds these twice when the request ends.
bool StoreLoads::HoldsTwice(const Job& job) const {
  const EngineOptions& options = engine_.options();
  if (prefixes_.divisible() || job.length == 0 || options.releases_memory) return true;
  const std::int64_t pool = options.pool_tokens > 0
                                ? options.pool_tokens
                                : std::int64_t{options.max_sequences} * options.context;
  const auto prompt = static_cast<std::int64_t>(job.request.prompt.size());
  const std::int64_t end =
      job.request.max_tokens < 0
          ? options.context
          : std::min<std::int64_t>(options.context, prompt + job.request.max_tokens);
  return job.length + end <= pool;
}

void StoreLoads::Start(Job& job, Position max) {
  if (auto nothing = engine_.prefix_store()->keys().Nothing(job.salt); nothing.ok()) {
    job.store.known.last = *nothing;
  }
  job.store.load = loader_->Begin({.tokens = job.tokens,
                                   .salt = job.salt,
                                   .from = job.length,
                                   .max = max,
                                   .computes_per_s = computes_per_s_});
}

// Passes with few tokens are those of answers.
void StoreLoads::MeasurePasses() {
  constexpr std::int64_t kMinTokens = 32;
  const auto tokens =
      stats_.evaluated_tokens - std::exchange(measured_tokens_, stats_.evaluated_tokens);
  const double seconds =
      stats_.pass_seconds - std::exchange(measured_seconds_, stats_.pass_seconds);
  const bool encodes = engine_.has_encoder();  // CountText measures these
  if (tokens < kMinTokens || seconds <= 0.0 || encodes) return;
  AddRate(static_cast<double>(tokens) / seconds);
}

void StoreLoads::CountText(Position tokens, double seconds) {
  if (seconds > 0.0) AddRate(tokens / seconds);
}

void StoreLoads::AddRate(double rate) {
  computes_per_s_ = computes_per_s_ > 0.0 ? (3 * computes_per_s_ + rate) / 4 : rate;
}

bool StoreLoads::IsLate(const Job& job) const {
  if (computes_per_s_ <= 0.0) return false;
  const double waited = SecondsSince(job.store.began);
  const Position tokens = engine_.has_encoder() ? job.result.reuse.prompt : job.pending();
  return waited > StoreLoader::kMinLoadSeconds && waited > tokens / computes_per_s_;
}

void StoreLoads::Advance(std::span<const JobPtr> live) {
  if (loader_ == nullptr) return;
  MeasurePasses();
  std::int64_t bytes = 0;
  for (const JobPtr& job : live) {
    if (job->store.is_loading()) Advance(*job, bytes);
  }
}

void StoreLoads::Advance(Job& job, std::int64_t& bytes) {
  while (job.store.is_loading() && bytes < kMaxBytesPerStep) {
    auto fetched = loader_->Take(*job.store.load);
    if (!fetched) break;
    bytes += static_cast<std::int64_t>(fetched->payload.size);
    if (engine_.has_encoder()) {
      ApplyOutput(job, *fetched);
    } else if (!Apply(job, *fetched)) {
      break;
    }
  }
  if (!job.store.is_loading()) return;
  if (loader_->IsEnded(*job.store.load)) {
    StoreLoader::Report report = loader_->TakeReport(*job.store.load);
    job.store.known = std::move(report.known);
    job.store.known.max_wait_ms = max_wait_ms_;
    job.store.saves = true;
    End(job, std::move(report.problem));
  } else if (IsLate(job)) {
    Cancel(job);
    End(job, "loading took longer than computing");
  }
}

// Makes room for a pass of these tokens alone, without parking anybody.
bool StoreLoads::HasRoomFor(Job& job, Position tokens) {
  const PassRows rows[] = {{.job = &job, .tokens = tokens}};
  bool has_room = memory_.HasRoom(tokens, rows);
  while (!has_room && prefixes_.cache().Evict(tokens) >= 0) {
    memory_.Release();
    has_room = memory_.HasRoom(tokens, rows);
  }
  return has_room;
}

bool StoreLoads::Apply(Job& job, const StoreLoader::Fetched& fetched) {
  const Position target = std::min(fetched.piece.end, static_cast<Position>(job.tokens.size()) - 1);
  if (target <= job.length) return true;
  Status status = {StatusCode::kCacheFull, "the cache has no room for it"};
  if (HasRoomFor(job, target - job.length)) status = ApplySnapshot(job, fetched, target);
  if (!status.ok()) {
    GiveUp(job, fetched, status);
    return false;
  }
  AddStored(job, target - job.length, fetched.tier);
  job.length = target;
  if (fetched.piece.end - fetched.piece.begin == PrefixStore::kChunk) {
    job.store.known.last = fetched.piece;
  }
  return true;
}

// What is computed in the place of an object that is wrong is stored again.
void StoreLoads::Replace(Job& job, const StoreLoader::Fetched& fetched) {
  engine_.prefix_store()->Discard(fetched.piece.id);
  job.store.known.max_wait_ms = max_wait_ms_;
  job.store.saves = true;
}

void StoreLoads::GiveUp(Job& job, const StoreLoader::Fetched& fetched, const Status& status) {
  const bool is_wrong =
      status.code() != StatusCode::kOutOfMemory && status.code() != StatusCode::kCacheFull;
  if (is_wrong) Replace(job, fetched);
  Cache& cache = engine_.cache();
  if (!cache.CanResume(job.sequence, job.length)) {
    (void)cache.Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
    job.store.captures = prefixes_.cache().NotRestored(job.prefix);
    LoseRestored(job);
  }
  Cancel(job);
  if (is_wrong && !prefixes_.divisible()) {  // perhaps there is a shorter state
    job.result.reuse.store_problem = status.message();
    Start(job, fetched.piece.end - 1);
  }
  if (!job.store.is_loading()) End(job, std::string(status.message()));
}

// The part of a piece that the request has already is cut off, so that it takes no second cells.
Status StoreLoads::ApplySnapshot(Job& job, const StoreLoader::Fetched& fetched, Position target) {
  Cache& cache = engine_.cache();
  KVCACHE_ASSIGN_OR_RETURN(StoredState state, engine_.prefix_store()->Read(fetched.payload.span()));
  std::unique_ptr<Snapshot>& snapshot = state.snapshot;
  const bool is_piece =
      snapshot->begin() == fetched.piece.begin && snapshot->end() == fetched.piece.end;
  if (!is_piece) return Corrupt("the object has other tokens than its key says");
  if (prefixes_.divisible() && snapshot->begin() < job.length) {
    KVCACHE_ASSIGN_OR_RETURN(SnapshotParts parts,
                             cache.snapshots()->SplitSnapshot(snapshot, job.length));
    snapshot = std::move(parts.second);
  }
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Restore(job.sequence, snapshot.get(), target));
  if (engine_.states() != nullptr) {
    if (target < fetched.piece.end) state.last.clear();  // it is that of a later token
    engine_.states()->Restored(job.sequence, target, state.last);
  }
  return Status::Ok();
}

void StoreLoads::ApplyOutput(Job& job, const StoreLoader::Fetched& fetched) {
  PrefixStore& store = *engine_.prefix_store();
  auto output = store.ImportOutput(fetched.payload.span(), job.request.prompt.size());
  Status status = output.ok() ? store.RestoreOutput(job.sequence, **output) : output.status();
  if (status.ok()) {
    job.store.has_output = true;
    AddStored(job, job.result.reuse.prompt, fetched.tier);
  }
  const bool is_wrong = !output.ok() && status.code() != StatusCode::kOutOfMemory;
  if (is_wrong) Replace(job, fetched);
  Cancel(job);
  End(job, std::string(status.message()));  // empty if it was restored
}

void StoreLoads::AddStored(Job& job, Position tokens, StoreTier tier) {
  ReuseReport& reuse = job.result.reuse;
  stats_.restored_tokens += tokens;
  job.store.loaded += tokens;
  if (!job.store.is_first) {
    reuse.recomputed -= tokens;
    return;
  }
  reuse.stored += tokens;
  reuse.tiers[static_cast<std::size_t>(tier)] += tokens;
  job.store.pieces.emplace_back(tokens, tier);
  reuse.restored += tokens;
  reuse.computed -= tokens;
  reuse.matched = std::max(reuse.matched, reuse.restored);
  for (PrefixMiss& miss : reuse.missed) {
    const Position taken = std::min(tokens, miss.tokens);
    miss.tokens -= taken;
    tokens -= taken;
  }
  std::erase_if(reuse.missed, [](const PrefixMiss& miss) { return miss.tokens == 0; });
}

void StoreLoads::LoseRestored(Job& job) {
  ReuseReport& reuse = job.result.reuse;
  const Position lost = std::exchange(job.length, 0);
  stats_.restored_tokens -= lost;
  job.store.loaded = 0;
  if (!job.store.is_first) {
    reuse.recomputed += lost;
    return;
  }
  reuse.stored = 0;
  reuse.tiers = {};
  job.store.pieces.clear();
  reuse.restored -= lost;
  reuse.computed += lost;
  if (lost > 0) reuse.missed.insert(reuse.missed.begin(), {lost, MissReason::kRestoreFailed});
}

void StoreLoads::End(Job& job, std::string problem) {
  job.store.load.reset();
  if (job.pictures != nullptr) LeavePicture(job);
  ReuseReport& reuse = job.result.reuse;
  reuse.store_ms += MillisecondsSince(job.store.began);
  if (!problem.empty()) reuse.store_problem = std::move(problem);
  std::vector<Position> captures = std::move(job.store.captures);
  std::erase_if(captures, [&](Position at) { return at <= job.length; });
  job.captures.Schedule(engine_.cache(), job.sequence, std::move(captures));
  if (!prefixes_.divisible() && job.store.loaded > 0)
    prefixes_.Keep(job);  // others continue from here
}

// Whole states end in no picture.
void StoreLoads::LeavePicture(Job& job) {
  const Position length = job.pictures->Before(job.length);
  const Position part = job.length - length;
  if (part == 0 || !engine_.cache().Remove(job.sequence, length, kEndOfSequence).ok()) return;
  job.length = length;
  stats_.restored_tokens -= part;
  job.store.loaded -= part;
  ReuseReport& reuse = job.result.reuse;
  if (!job.store.is_first) {
    reuse.recomputed += part;
    return;
  }
  reuse.stored -= part;
  auto& pieces = job.store.pieces;
  for (Position left = part; left > 0 && !pieces.empty();) {  // from the last ones
    auto& [tokens, tier] = pieces.back();
    const Position taken = std::min(left, tokens);
    reuse.tiers[static_cast<std::size_t>(tier)] -= taken;
    left -= taken;
    tokens -= taken;
    if (tokens == 0) pieces.pop_back();
  }
  reuse.restored -= part;
  reuse.computed += part;
  reuse.missed.insert(reuse.missed.begin(), {part, MissReason::kPartOfPicture});
}

void StoreLoads::Cancel(Job& job) {
  if (!job.store.is_loading()) return;
  loader_->Cancel(*job.store.load);
  job.store.load.reset();
}

void StoreLoads::Wait(std::span<const JobPtr> live) {
  const auto loads = [](const JobPtr& job) { return job->store.is_loading(); };
  if (loader_ != nullptr && std::any_of(live.begin(), live.end(), loads)) {
    loader_->WaitForProgress(kMaxWait);
  }
}

}  // namespace kvcache
