// A smaller model that drafts for the requests of a scheduler, with a sequence of its own for each of the
// engine's. A sequence keeps the text that it read last, so that a request that begins alike reads less.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache/status.h"
#include "kvcache/types.h"
#include "kvcache_engine/engine.h"
#include "kvcache_engine/session.h"

namespace kvcache {

class DraftModel {
 public:
  // Gives all of its cache the memory. Errors: those of Engine::UseDraftModel.
  static Result<std::unique_ptr<DraftModel>> Make(std::shared_ptr<Engine> draft,
                                                  const Engine& target, std::int64_t most_bytes);

  // Returns a drafter for one text, in the sequence that SetSequence names. A proposal reads one batch of
  // the text at most, so that a long prompt does not hold up other requests; there are no drafts before
  // all is read. Throws std::bad_alloc.
  std::unique_ptr<Drafter> MakeDrafter();

  // Returns the bytes of its cache and of its passes, which do not change.
  std::int64_t bytes() const { return bytes_; }

 private:
  explicit DraftModel(std::shared_ptr<Engine> draft);
  // Returns how many bytes there are.
  Result<std::int64_t> TakeMemory();

  std::shared_ptr<Engine> draft_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::int64_t bytes_ = 0;
};

}  // namespace kvcache
