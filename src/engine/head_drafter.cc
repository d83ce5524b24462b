// Drafts of the model's own head. A head with keys and values writes them behind the sequence in its part of
// the cache, inside of a transaction that is always rolled back: what stays is written by the model's next
// pass. A head without any reads those of the model, and writes nothing.
#include "kvcache_engine/head_drafter.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/likeliest_logit.h"
#include "engine/sequence_states.h"
#include "kvcache/transaction.h"

namespace kvcache {
namespace {

class HeadDrafter final : public Drafter {
 public:
  explicit HeadDrafter(Engine& engine)
      : engine_(engine),
        tokens_(engine.model().head_tokens()),
        logits_(tokens_.empty() ? static_cast<std::size_t>(engine.vocabulary_size())
                                : tokens_.size()),
        state_(static_cast<std::size_t>(engine.info().hidden_size)) {}

  void SetSequence(SequenceId sequence) override { sequence_ = sequence; }

  Status Begin(std::span<const std::int32_t> text) override {
    length_ = static_cast<Position>(text.size());
    last_ = text.empty() ? -1 : text.back();
    return Status::Ok();
  }
  Status Add(std::int32_t token) override {
    ++length_;
    last_ = token;
    return Status::Ok();
  }
  Status Propose(int most, std::vector<std::int32_t>& drafts) override {
    // The last token is not evaluated yet.
    const Position at = length_ - 1;
    most = std::min(most, engine_.context() - length_);
    const float* const state = engine_.states()->Find(sequence_, at - 1);
    if (most < 1 || state == nullptr) return Status::Ok();
    try {
      state_.assign(state, state + state_.size());
      token_ = last_;
      chance_ = 1.0;
      return engine_.model().head_reads_cache() ? DraftFromCache(at, most, drafts)
                                                : Draft(at, most, drafts);
    } catch (const std::bad_alloc&) {
      return {StatusCode::kOutOfMemory, "no memory for the drafts of a head"};
    }
  }

 private:
  Status Draft(Position at, int most, std::vector<std::int32_t>& drafts) {
    Cache& cache = engine_.cache().OfLayer(engine_.info().layers);
    auto begun = Transaction::Begin({&cache}, {{sequence_, at}},
                                    {.max_tokens = static_cast<Position>(most), .isolated = true});
    // Without room there are no drafts.
    if (begun.status().code() == StatusCode::kCacheFull) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(const Transaction round, std::move(begun));
    bool goes_on = true;
    for (int i = 0; i < most && goes_on; ++i) {
      const Position position[] = {at + i};
      KVCACHE_RETURN_IF_ERROR(
          cache.StartForward({.positions = position, .sequences = {&sequence_, 1}, .items = {}},
                             ForwardMode::kCompute));
      KVCACHE_ASSIGN_OR_RETURN(goes_on, AddDraft(position, drafts));
    }
    return Status::Ok();
  }

  // All drafts of a round are at the position of the last token, and see the tokens before it.
  Status DraftFromCache(Position at, int most, std::vector<std::int32_t>& drafts) {
    KVCACHE_RETURN_IF_ERROR(engine_.model().BeginDrafts(engine_.cache(), sequence_, at));
    const Position position[] = {at};
    bool goes_on = true;
    for (int i = 0; i < most && goes_on; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(goes_on, AddDraft(position, drafts));
    }
    return Status::Ok();
  }

  // Adds the likeliest token behind the last draft if it is likely enough. Returns whether another may follow:
  // then the state is the head's for it.
  Result<bool> AddDraft(std::span<const Position> position, std::vector<std::int32_t>& drafts) {
    KVCACHE_RETURN_IF_ERROR(engine_.model().Draft({&token_, 1}, position, state_.data(),
                                                  engine_.cache(), logits_.data(), state_.data()));
    const std::size_t best = LikeliestLogit(logits_);
    if (least_chance() > 0.0) chance_ *= ChanceOfLikeliest(logits_, logits_[best]);
    if (chance_ < least_chance()) return false;
    token_ = tokens_.empty() ? static_cast<std::int32_t>(best) : tokens_[best];
    drafts.push_back(token_);
    return !engine_.IsEndOfGeneration(token_);
  }

  Engine& engine_;
  SequenceId sequence_{};
  Position length_ = 0;  // of the text
  std::int32_t last_ = -1;
  const std::span<const std::int32_t> tokens_;  // of each logit; empty: the vocabulary's
  std::vector<float> logits_;
  std::vector<float> state_;  // [hidden_size]
  // Of a round:
  std::int32_t token_ = -1;  // the last draft
  double chance_ = 1.0;      // that all drafts are right; 1 if no chance is asked for
};

}  // namespace

Result<std::unique_ptr<Drafter>> MakeHeadDrafter(Engine& engine) {
  if (!engine.has_draft_head()) {
    return Status(StatusCode::kNotFound, "the engine was opened without a draft head");
  }
  return std::unique_ptr<Drafter>(std::make_unique<HeadDrafter>(engine));
}

}  // namespace kvcache
