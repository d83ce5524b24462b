#include "pull/blob_fetch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"

namespace kvcache::pull {
namespace {

constexpr std::uint64_t kMinGain = std::uint64_t{16} << 10;  // less is no progress
constexpr std::size_t kShownDigits = 12;                     // of a digest, as Ollama shows them
constexpr int kRangeNotSatisfiable = 416;

Status Stopped() {
  return {StatusCode::kCancelled, "stopped"};
}

// Reads "bytes 100-199/200".
struct ContentRange {
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> total{};
};
std::optional<ContentRange> ParseRange(const std::string& text) {
  constexpr std::string_view kUnit = "bytes ";
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == std::string::npos || slash == std::string::npos) {
    return std::nullopt;
  }
  const auto begin = ParseNumber<std::uint64_t>(text.substr(kUnit.size(), dash - kUnit.size()));
  if (!begin) return std::nullopt;
  return ContentRange{*begin, ParseNumber<std::uint64_t>(text.substr(slash + 1))};
}

class BlobFetch {
 public:
  BlobFetch(Fetcher& fetcher, const PlannedLayer& planned, PartialBlob& partial,
            const PullOptions& options)
      : fetcher_(fetcher),
        planned_(planned),
        partial_(partial),
        options_(options),
        place_(PlaceOf(planned.url)) {
    const std::string& digest = planned.layer.digest;
    state_.status = StrCat("pulling ", digest.substr(digest.find(':') + 1, kShownDigits));
    state_.digest = digest;
    state_.total = planned.layer.size;
  }

  Status Fetch() {
    Report();
    KVCACHE_RETURN_IF_ERROR(FetchRest());
    if (options_.report) options_.report({.status = "verifying sha256 digest"});
    return partial_.Commit().WithContext(place_);
  }

 private:
  Status FetchRest() {
    int failures = 0;
    while (partial_.size() < planned_.layer.size) {
      const std::uint64_t before = partial_.size();
      restarted_ = false;
      Status status = FetchOnce();
      if (IsCancelled()) return Stopped();
      // The server has no bytes from there on: the ones that came before may be another file's.
      if (!status.ok() && before > 0 && fetcher_.last_status() == kRangeNotSatisfiable) {
        status = Restart();
        if (!status.ok()) return status;
        status = {StatusCode::kIo, StrCat(place_, ": the server answers 416, no such range")};
      }
      const bool is_short = status.ok() && partial_.size() < planned_.layer.size;
      if (is_short) {
        status = {StatusCode::kIo, StrCat(place_, ": the answer ended after ", partial_.size(),
                                          " of ", planned_.layer.size, " bytes")};
      }
      if (status.ok()) continue;
      if (status.code() != StatusCode::kIo || disk_failed_) return status;
      // Bytes that come again are no progress.
      const bool gained = !restarted_ && partial_.size() >= before + kMinGain;
      failures = gained ? 0 : failures + 1;
      if (failures > options_.max_retries) return status;
      Pause(failures);
    }
    return Status::Ok();
  }

  Status FetchOnce() {
    Fetcher::Headers headers;
    if (partial_.size() > 0) headers.emplace_back("Range", StrCat("bytes=", partial_.size(), "-"));
    const HttpSink sink{.on_head = [&](const HttpHead& head) { return Begin(head); },
                        .on_bytes = [&](std::span<const std::byte> bytes) { return Add(bytes); }};
    return fetcher_.Get(planned_.url, headers, sink);
  }

  // Places the answer, and compares the size that it says.
  Status Begin(const HttpHead& head) {
    std::optional<std::uint64_t> total = ParseNumber<std::uint64_t>(head.Header("content-length"));
    if (head.status == 206) {
      const auto range = ParseRange(head.Header("content-range"));
      if (!range || range->begin != partial_.size()) {
        return Corrupt(StrCat(place_, ": the server was asked for bytes from ", partial_.size(),
                              " on and answers ", Quoted(head.Header("content-range"))));
      }
      total = range->total;
    }
    if (total && *total != planned_.layer.size) {
      return Corrupt(StrCat(place_, ": the server has ", *total, " bytes, the manifest says ",
                            planned_.layer.size));
    }
    // An answer of 200 has all of it again.
    return head.status != 206 && partial_.size() > 0 ? Restart() : Status::Ok();
  }

  Status Restart() {
    restarted_ = true;
    Status status = partial_.Restart();
    disk_failed_ = disk_failed_ || !status.ok();
    return status;
  }

  Status Add(std::span<const std::byte> bytes) {
    if (IsCancelled()) return Stopped();
    Status status = partial_.Append(bytes);
    if (status.code() == StatusCode::kIo) disk_failed_ = true;
    if (status.code() == StatusCode::kCorrupt) return std::move(status).WithContext(place_);
    KVCACHE_RETURN_IF_ERROR(std::move(status));
    Report();
    return Status::Ok();
  }

  void Report() {
    state_.completed = partial_.size();
    if (options_.report) options_.report(state_);
  }

  bool IsCancelled() const { return options_.cancelled && options_.cancelled(); }

  void Pause(int failures) const {
    using Clock = std::chrono::steady_clock;
    const double seconds = options_.pause_seconds * static_cast<double>(1 << std::min(failures, 5));
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds / 2));
    while (Clock::now() < end && !IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  Fetcher& fetcher_;
  const PlannedLayer& planned_;
  PartialBlob& partial_;
  const PullOptions& options_;
  const std::string place_;
  PullState state_;
  bool disk_failed_ = false;
  bool restarted_ = false;  // by the last request
};

}  // namespace

Status FetchBlob(const ModelStore& store, Fetcher& fetcher, const PlannedLayer& planned,
                 const PullOptions& options) {
  const auto is_cancelled = [&] { return options.cancelled && options.cancelled(); };
  if (store.Has(planned.layer, options.cancelled)) return Status::Ok();
  if (is_cancelled()) return Stopped();
  KVCACHE_ASSIGN_OR_RETURN(const auto partial, store.OpenPartial(planned.layer, options.cancelled));
  // Another process may have fetched it while this one waited.
  if (partial->size() == 0 && store.Has(planned.layer, options.cancelled)) return partial->Remove();
  if (is_cancelled()) return Stopped();
  return BlobFetch(fetcher, planned, *partial, options).Fetch();
}

}  // namespace kvcache::pull
