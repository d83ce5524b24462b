// Fetches the stored prefixes of requests in a thread of its own, so that the engine's thread never waits
// for a store.
//
//   engine's thread                                    loader's thread
//   load = loader.Begin({.tokens = …})
//   … steps of other requests …                        looks for pieces, reads one after the other
//   while (auto fetched = loader.Take(*load)) …        continues when there is room
//   if (loader.IsEnded(*load)) loader.TakeReport(*load)
//
// The bytes that wait for the engine's thread are bounded. Loads are served in order of their beginning.
//
// Thread safety: all calls from one thread, the engine's.
// Design: docs/design/store.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/persist/prefix_store.h"

namespace kvcache {

// One request's way through the loader.
class StoreLoad;

class StoreLoader {
 public:
  // `prefixes` must outlive it.
  explicit StoreLoader(PrefixStore& prefixes);
  // Ends all loads.
  ~StoreLoader();
  StoreLoader(const StoreLoader&) = delete;
  StoreLoader& operator=(const StoreLoader&) = delete;

  struct Request {
    std::vector<std::int32_t> tokens{};
    std::uint64_t salt = 0;
    Position from = 0;            // the tokens before it are there already
    Position max = 0;             // tokens that are of use, at most
    double computes_per_s = 0.0;  // tokens that a pass computes in a second; 0: unknown
  };
  // A prompt whose load would take longer than this, and than its computation, is not loaded. Nobody
  // notices less.
  static constexpr double kMinLoadSeconds = 0.25;
  // Looks for the longest stored prefix of the tokens, and fetches what is of use. Returns null without
  // memory.
  std::shared_ptr<StoreLoad> Begin(Request request);

  struct Fetched {
    StoredPiece piece;  // a whole state begins at 0; an encoder's output has all tokens of its text
    store::StoreBytes payload;
    StoreTier tier = StoreTier::kDisk;  // that it came from
  };
  // Returns the next piece, if there is one.
  std::optional<Fetched> Take(StoreLoad& load);
  // Drops what is left of the load.
  void Cancel(StoreLoad& load);
  // Returns whether everything was taken, and nothing more comes.
  bool IsEnded(const StoreLoad& load) const;

  struct Report {
    PrefixStore::Known known{};  // what the store has
    std::string problem{};       // why a stored prefix was not fetched; empty if there is none
  };
  // REQUIRES: the load ended.
  Report TakeReport(StoreLoad& load);

  // Waits until there is something new of any load since the last call, or `time` is over.
  void WaitForProgress(std::chrono::milliseconds time);

 private:
  void Run();
  void Serve(StoreLoad& load);
  Status ServePieces(StoreLoad& load);
  Status ServeState(StoreLoad& load);
  Status ServeOutput(StoreLoad& load);
  // Reads objects and gives them to the engine's thread, when there is room; counts them. Errors: the
  // store's; kCancelled.
  Status Fetch(StoreLoad& load, std::span<const StoredPiece> pieces, std::size_t& count);
  Status Give(StoreLoad& load, const StoredPiece& piece, std::span<const std::byte> payload,
              StoreTier tier);
  bool IsCancelled(const StoreLoad& load) const;
  // Returns why `tokens` should be computed rather than loaded, as far as the speed of earlier loads tells.
  Status CheckSpeed(const Request& request, Position tokens);
  void Measure(Position tokens, double seconds);

  PrefixStore& prefixes_;
  mutable std::mutex mutex_;
  std::condition_variable work_;      // for the loader's thread
  std::condition_variable progress_;  // for the engine's thread
  std::deque<std::shared_ptr<StoreLoad>> queue_;
  std::int64_t waiting_bytes_ = 0;  // fetched and not taken
  double loads_per_s_ = 0.0;        // tokens, of the loader's thread; 0: unknown
  double waited_s_ = 0.0;           // for room, in the load that is served
  int refused_ = 0;                 // loads in a row that would have been too slow
  bool has_news_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvcache
