// Drafters propose the next tokens of a text. An engine evaluates a proposal in one pass and keeps the
// tokens that it would have sampled anyway: the text is the same with and without a drafter, token by
// token, for every sampler and seed. Only the time differs (GenerateRequest::drafter). After an error of a
// drafter, the answer continues without it.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/draft_rates.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

class Drafter;

// A drafter that is asked together with others.
struct DraftAsk {
  Drafter* drafter = nullptr;
  int max = 0;                                  // drafts
  std::vector<std::int32_t>* drafts = nullptr;  // becomes what its Propose would append
  Status status{};                              // becomes what its Propose would return
};

// Proposes for the texts of several drafters at once, in less time than for one after the other.
class BatchDrafter {
 public:
  virtual ~BatchDrafter() = default;
  // Proposes the drafts that each drafter proposes alone. One that fails does not disturb the others.
  // REQUIRES: the drafters belong to this batch (Drafter::batch), and each is named once.
  virtual void Propose(std::span<DraftAsk> asks) = 0;
  // Returns the expected seconds of one more draft for each of `texts` texts; 0 if nothing was measured.
  virtual double Seconds(int texts) const = 0;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Says which of the engine's sequences has the text. Drafters that read the cache need it.
  virtual void SetSequence(SequenceId /*sequence*/) {}
  // Begins a text, or continues with the last one if `text` begins with it.
  virtual Status Begin(std::span<const std::int32_t> text) = 0;
  // Says that `token` is the next one of the text.
  virtual Status Add(std::int32_t token) = 0;
  // Appends to `drafts` at most `max` tokens that may come next, or none.
  virtual Status Propose(int max, std::vector<std::int32_t>& drafts) = 0;

  // Returns who proposes for this drafter and others at once; null: nobody does. Drafters of the same one may be
  // asked together, by its Propose.
  virtual BatchDrafter* batch() { return nullptr; }

  // How often its drafts are right, as measured in all texts so far.
  DraftRates& rates() { return rates_; }

 private:
  DraftRates rates_;
};

// Returns a drafter that looks up what followed the last tokens before: in this text, and in the texts
// that it was given earlier. It costs nothing to speak of, and helps where a text repeats itself: code
// that is edited, quotations, lists.
std::unique_ptr<Drafter> MakeLookupDrafter();

}  // namespace kvcache
