#include "engine/persist/store_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/persist/state_index.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMaxLoadedAheadBytes = std::int64_t{256} << 20;
constexpr int kMaxRefused = 7;  // then a load measures the speed again

}  // namespace

class StoreLoad {
 public:
  explicit StoreLoad(StoreLoader::Request asked) : request(std::move(asked)) {}

  const StoreLoader::Request request;
  bool has_any = false;  // anything was fetched; the loader's thread's
  // Guarded by the loader's mutex.
  std::deque<StoreLoader::Fetched> fetched;
  bool is_cancelled = false;
  bool is_served = false;  // the loader's thread has nothing more
  StoreLoader::Report report;
};

StoreLoader::StoreLoader(PrefixStore& prefixes) : prefixes_(prefixes) {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    stop_ = true;  // nothing is loaded
  }
}

StoreLoader::~StoreLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<StoreLoad> StoreLoader::Begin(Request request) {
  try {
    auto load = std::make_shared<StoreLoad>(std::move(request));
    const std::lock_guard lock(mutex_);
    if (stop_) return nullptr;
    queue_.push_back(load);
    work_.notify_all();
    return load;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::optional<StoreLoader::Fetched> StoreLoader::Take(StoreLoad& load) {
  const std::lock_guard lock(mutex_);
  if (load.fetched.empty()) return std::nullopt;
  std::optional<Fetched> fetched(std::move(load.fetched.front()));
  load.fetched.pop_front();
  waiting_bytes_ -= static_cast<std::int64_t>(fetched->payload.size);
  work_.notify_all();
  return fetched;
}

void StoreLoader::Cancel(StoreLoad& load) {
  const std::lock_guard lock(mutex_);
  load.is_cancelled = true;
  for (const Fetched& fetched : load.fetched) {
    waiting_bytes_ -= static_cast<std::int64_t>(fetched.payload.size);
  }
  load.fetched.clear();
  work_.notify_all();
}

bool StoreLoader::IsCancelled(const StoreLoad& load) const {
  const std::lock_guard lock(mutex_);
  return stop_ || load.is_cancelled;
}

bool StoreLoader::IsEnded(const StoreLoad& load) const {
  const std::lock_guard lock(mutex_);
  return load.is_served && load.fetched.empty();
}

StoreLoader::Report StoreLoader::TakeReport(StoreLoad& load) {
  const std::lock_guard lock(mutex_);
  return std::move(load.report);
}

void StoreLoader::WaitForProgress(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  progress_.wait_for(lock, time, [this] { return has_news_; });
  has_news_ = false;
}

void StoreLoader::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const std::shared_ptr<StoreLoad> load = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Serve(*load);
    lock.lock();
    if (load != nullptr) load->is_served = true;
    has_news_ = true;
    progress_.notify_all();
  }
}

void StoreLoader::Serve(StoreLoad& load) {
  if (IsCancelled(load)) return;
  Status status;
  try {
    status = prefixes_.has_encoder()    ? ServeOutput(load)
             : prefixes_.is_divisible() ? ServePieces(load)
                                        : ServeState(load);
  } catch (const std::exception& error) {
    status = {StatusCode::kInternal, error.what()};
  }
  if (status.code() == StatusCode::kCancelled) return;
  std::string problem = status.message();
  const bool is_new = status.ok() && load.request.from == 0 && !load.has_any;
  if (is_new) problem = prefixes_.WhyMissed(load.request.tokens, load.request.salt);
  const std::lock_guard lock(mutex_);
  load.report.problem = std::move(problem);
}

Status StoreLoader::CheckSpeed(const Request& request, Position tokens) {
  if (loads_per_s_ <= 0.0 || request.computes_per_s <= 0.0) return Status::Ok();
  const double load_s = tokens / loads_per_s_;
  const bool is_slow = load_s > kMinLoadSeconds && load_s > tokens / request.computes_per_s;
  if (!is_slow || refused_ == kMaxRefused) {
    refused_ = 0;
    return Status::Ok();
  }
  ++refused_;
  return Unsupported(StrCat("not worth loading: the store gives ",
                            static_cast<std::int64_t>(loads_per_s_), " tokens a second, and ",
                            static_cast<std::int64_t>(request.computes_per_s), " are computed"));
}

void StoreLoader::Measure(Position tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0.0) return;
  const double rate = tokens / seconds;
  loads_per_s_ = loads_per_s_ > 0.0 ? (loads_per_s_ + rate) / 2 : rate;
}

Status StoreLoader::Fetch(StoreLoad& load, std::span<const StoredPiece> pieces,
                          std::size_t& count) {
  const Position begin = std::max(load.request.from, pieces.front().begin);
  KVCACHE_RETURN_IF_ERROR(
      CheckSpeed(load.request, std::min(pieces.back().end, load.request.max) - begin));
  std::vector<ObjectId> ids;
  for (const StoredPiece& piece : pieces) ids.push_back(piece.id);
  waited_s_ = 0.0;
  Position end = begin;
  const auto start = std::chrono::steady_clock::now();
  Status status = prefixes_.store().GetEach(
      ids, [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
        Status given = Give(load, pieces[index], payload, tier);
        if (given.ok()) end = pieces[index].end;
        if (given.ok()) ++count;
        return given;
      });
  Measure(end - begin, SecondsSince(start) - waited_s_);
  return status;
}

Status StoreLoader::Give(StoreLoad& load, const StoredPiece& piece,
                         std::span<const std::byte> payload, StoreTier tier) {
  Fetched fetched{.piece = piece, .payload = {}, .tier = tier};
  KVCACHE_ASSIGN_OR_RETURN(fetched.payload, store::StoreBytes::Make(payload.size()));
  std::memcpy(fetched.payload.data.get(), payload.data(), payload.size());
  const auto size = static_cast<std::int64_t>(payload.size());
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] {
    return stop_ || load.is_cancelled || waiting_bytes_ == 0 ||
           waiting_bytes_ + size <= kMaxLoadedAheadBytes;
  });
  waited_s_ += SecondsSince(start);
  if (stop_ || load.is_cancelled) return {StatusCode::kCancelled, "the load was cancelled"};
  load.has_any = true;
  load.fetched.push_back(std::move(fetched));
  waiting_bytes_ += size;
  has_news_ = true;
  progress_.notify_all();
  return Status::Ok();
}

Status StoreLoader::ServePieces(StoreLoad& load) {
  const Request& request = load.request;
  const PrefixKeys& keys = prefixes_.keys();
  Store& store = prefixes_.store();
  KVCACHE_ASSIGN_OR_RETURN(const StoredPiece nothing, keys.Nothing(request.salt));
  Status status;  // of a store that does not answer; others may
  KVCACHE_ASSIGN_OR_RETURN(
      const std::vector<StoredPiece> pieces,
      keys.Divide(request.tokens, PrefixKeys::kMinPiece, nothing, [&](const ObjectId& id) {
        if (IsCancelled(load)) return false;
        const auto has = store.Contains(id);
        if (!has.ok() && status.ok()) status = has.status();
        return has.ok() && *has;
      }));
  const auto missing = std::find_if(pieces.begin(), pieces.end(), [&](const StoredPiece& piece) {
    return std::min(piece.end, request.max) > request.from;
  });
  std::size_t whole = static_cast<std::size_t>(missing - pieces.begin());
  const bool is_worth_it = !pieces.empty() && std::min(pieces.back().end, request.max) >=
                                                  request.from + PrefixKeys::kMinPiece;
  if (is_worth_it) {
    Status fetched = Fetch(load, std::span(missing, pieces.end()), whole);
    if (!fetched.ok()) status = std::move(fetched);
  } else {
    whole = pieces.size();
  }
  PrefixStore::Known known{.last = nothing};
  std::vector<ObjectId> used;  // the first piece is of use to most prompts, and goes last
  for (const StoredPiece& piece : std::span(pieces).first(whole)) {
    used.insert(used.begin(), piece.id);
    if (piece.end - piece.begin == PrefixKeys::kChunk) {
      known.last = piece;
    } else {
      known.ids.push_back(piece.id);
    }
  }
  store.Touch(used);
  const std::lock_guard lock(mutex_);
  load.report.known = std::move(known);
  return status;
}

Status StoreLoader::ServeState(StoreLoad& load) {
  const Request& request = load.request;
  Store& store = prefixes_.store();
  Status first;
  const Status status = ForEachState(store, prefixes_.keys(), request.tokens, request.salt,
                                     request.from + PrefixKeys::kMinPiece, request.max,
                                     [&](const StoredPiece& state) -> Result<bool> {
                                       if (IsCancelled(load)) return false;
                                       std::size_t count = 0;
                                       Status fetched = Fetch(load, std::span(&state, 1), count);
                                       if (fetched.ok()) {
                                         store.Touch(std::span(&state.id, 1));
                                         const std::lock_guard lock(mutex_);
                                         load.report.known.ids.push_back(state.id);
                                       }
                                       if (fetched.ok() || fetched.code() == StatusCode::kCancelled)
                                         return false;
                                       if (first.ok() && fetched.code() != StatusCode::kNotFound)
                                         first = std::move(fetched);
                                       return true;
                                     });
  return status.ok() ? first : status;
}

Status StoreLoader::ServeOutput(StoreLoad& load) {
  const Request& request = load.request;
  Store& store = prefixes_.store();
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId id,
                           prefixes_.keys().OutputId(request.tokens, request.salt));
  KVCACHE_ASSIGN_OR_RETURN(const bool has, store.Contains(id));
  if (!has || IsCancelled(load)) return Status::Ok();
  const StoredPiece text{id, 0, static_cast<Position>(request.tokens.size())};
  std::size_t count = 0;
  Status fetched = Fetch(load, std::span(&text, 1), count);
  if (fetched.code() == StatusCode::kNotFound) return Status::Ok();  // evicted since
  const bool is_there = fetched.ok() || fetched.code() == StatusCode::kUnsupported;
  if (!is_there) return fetched;
  store.Touch(std::span(&id, 1));
  const std::lock_guard lock(mutex_);
  load.report.known.ids.push_back(id);
  return fetched;
}

}  // namespace kvcache
