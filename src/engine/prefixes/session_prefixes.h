// The prefixes that a session has evaluated: it goes back to any of them, also after it went on in
// another way.
//
// Thread safety: that of the session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prefixes/scheduled_captures.h"
#include "engine/prefixes/snapshot_states.h"
#include "kvcache_engine/session.h"

namespace kvcache {

// What a session reuses of a prompt, and how much of it a store gave.
struct SessionReuse : PrefixMatch {
  Position stored = 0;      // tokens from the store
  TokensByTier tiers{};     // of these, by tier
  double restore_ms = 0.0;  // of the store
  std::string problem;      // why something in the store was not used; empty if nothing was refused
};

class SessionPrefixes {
 public:
  // `engine` and `session` must outlive it. It keeps about `most_tokens` tokens besides those of the
  // session. Errors: kOutOfMemory.
  static Result<std::unique_ptr<SessionPrefixes>> Make(Engine& engine, Session& session,
                                                       std::int64_t most_tokens);
  ~SessionPrefixes();
  SessionPrefixes(const SessionPrefixes&) = delete;
  SessionPrefixes& operator=(const SessionPrefixes&) = delete;

  // Brings the session to the longest prefix of `tokens` that it has or had, at most all but the last
  // token, and then to what the engine's store has beyond that. Schedules states at the restore points
  // and where later prompts may go on. In the result, `resumed` is the session's length. Errors: those
  // of Session::Truncate.
  Result<SessionReuse> Begin(std::span<const std::int32_t> tokens,
                             std::span<const Position> restore_points);
  // Stores what the session has evaluated of the prompt; call it after each pass.
  void Evaluated();
  // Keeps what the session evaluated since Begin.
  void End();

  const PrefixCache& cache() const { return *prefixes_; }

 private:
  SessionPrefixes(Engine& engine, Session& session, std::int64_t most_tokens);

  // Stores a state that was captured, if it is worth its bytes.
  void StoreState(const Snapshot& state, Position length);
  void TakeCaptures();

  Engine& engine_;
  Session& session_;
  const std::int64_t most_tokens_;
  SnapshotStates states_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::optional<PrefixRequest> request_;
  std::vector<std::int32_t> begun_;       // the tokens of the request
  std::vector<Position> restore_points_;  // of the request
  ScheduledCaptures captures_;
};

}  // namespace kvcache
