// A smaller model that drafts for the requests of a scheduler, with a sequence of its own for each of the
// engine's. A sequence keeps the text that it read last, so that a request that begins alike reads less.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache/status.h"
#include "kvcache/types.h"
#include "kvcache_engine/engine.h"
#include "kvcache_engine/session.h"

namespace kvcache {

// A sequence of the smaller model. Texts with other salts share nothing.
struct DraftSession {
  std::unique_ptr<Session> session;
  std::uint64_t salt = 0;
};

class DraftModel final : public BatchDrafter {
 public:
  // Gives all of its cache the memory. Errors: those of Engine::UseDraftModel.
  static Result<std::unique_ptr<DraftModel>> Make(std::shared_ptr<Engine> draft,
                                                  const Engine& target, std::int64_t max_bytes);

  // Returns a drafter for one text, in the sequence that SetSequence names. It proposes nothing before it has
  // read all of the text. Throws std::bad_alloc.
  std::unique_ptr<Drafter> MakeDrafter(std::uint64_t salt);

  // Proposes for one text after the other. Long texts are read in parts, a few hundred tokens in one call for all
  // of them, so that they do not hold up other requests.
  void Propose(std::span<DraftAsk> asks) override;
  // Does not count the time of reading long texts.
  double Seconds(int texts) const override { return texts * seconds_; }

  // Returns the bytes of its cache and of its passes, which do not change.
  std::int64_t bytes() const { return bytes_; }

 private:
  explicit DraftModel(std::shared_ptr<Engine> draft);
  // Returns the bytes of the cache and of passes.
  Result<std::int64_t> TakeMemory();

  std::shared_ptr<Engine> draft_;
  std::vector<DraftSession> sessions_;
  std::int64_t bytes_ = 0;
  double seconds_ = 0.0;  // of a draft; 0: none was measured
};

}  // namespace kvcache
