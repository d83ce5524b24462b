// Drafts of the model's own head, for one text or for several side by side. A head with keys and values writes
// them behind the sequences in its part of the cache, inside of a transaction that is always rolled back: what
// stays is written by the model's next pass. A head without any reads those of the model, and writes nothing.
#include "kvcache_engine/head_drafter.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "engine/drafts/head_batch.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "engine/request/likeliest_logit.h"
#include "kvcache/transaction.h"
#include "kvcache/wrapper_cache.h"
#include "speculation/pass_costs.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

class HeadDrafter final : public Drafter {
 public:
  explicit HeadDrafter(BatchDrafter& batch) : batch_(batch) {}

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
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    proposed_.clear();
    DraftAsk ask{.drafter = this, .max = max, .drafts = &proposed_};
    batch_.Propose({&ask, 1});
    drafts.insert(drafts.end(), proposed_.begin(), proposed_.end());
    return std::move(ask.status);
  }
  BatchDrafter* batch() override { return &batch_; }

  SequenceId sequence() const { return sequence_; }
  // The position of the text's last token, which is not evaluated yet.
  Position at() const { return length_ - 1; }
  std::int32_t last() const { return last_; }

 private:
  BatchDrafter& batch_;
  SequenceId sequence_{};
  Position length_ = 0;  // of the text
  std::int32_t last_ = -1;
  std::vector<std::int32_t> proposed_;  // scratch
};

// A pass has a row of each text that wants a further draft.
class HeadBatch final : public BatchDrafter {
 public:
  explicit HeadBatch(Engine& engine)
      : engine_(engine),
        head_tokens_(engine.model().head_tokens()),
        logits_size_(head_tokens_.empty() ? static_cast<std::size_t>(engine.vocabulary_size())
                                          : head_tokens_.size()),
        hidden_size_(static_cast<std::size_t>(engine.info().hidden_size)) {}

  void Propose(std::span<DraftAsk> asks) override;
  double Seconds(int texts) const override;

 private:
  struct Row {
    const HeadDrafter* text = nullptr;
    std::vector<std::int32_t>* drafts = nullptr;
    std::size_t max = 0;  // drafts

    std::int32_t token() const { return drafts->empty() ? text->last() : drafts->back(); }
  };

  // Proposes for all of them, at most Model::kMaxDraftRows, or fails.
  Status ProposeTogether(std::span<DraftAsk> asks);
  void AddRows(std::span<DraftAsk> asks);
  // Drafts a token of each row. Rows that want no more leave.
  Status RunPass();
  Status StartPass();
  // Adds the likeliest token of a row's logits. Returns whether another may follow.
  bool AddDraft(std::size_t index);

  Engine& engine_;
  const std::span<const std::int32_t> head_tokens_;  // of each logit; empty: the vocabulary's
  const std::size_t logits_size_;                    // of a row
  const std::size_t hidden_size_;
  PassCosts costs_;  // by rows
  std::vector<Row> rows_;
  std::vector<SequenceLength> lengths_;  // [rows]
  std::vector<std::int32_t> tokens_;     // [rows]
  std::vector<Position> positions_;      // [rows]
  std::vector<SequenceId> sequences_;    // [rows]
  std::vector<float> states_;            // [hidden_size, at least the rows]
  std::vector<float> logits_;            // [logits_size, at least the rows]
};

void HeadBatch::Propose(std::span<DraftAsk> asks) {
  constexpr std::size_t kMax = Model::kMaxDraftRows;
  for (; asks.size() > kMax; asks = asks.subspan(kMax)) Propose(asks.first(kMax));
  const Status status = ProposeTogether(asks);
  if (status.ok()) return;
  // One that fails alone does not disturb the others.
  for (DraftAsk& ask : asks) {
    ask.status = asks.size() > 1 ? ProposeTogether({&ask, 1}) : status;
    if (ask.status.code() != StatusCode::kCacheFull) continue;
    ask.drafts->clear();  // without room there are no drafts
    ask.status = Status::Ok();
  }
}

double HeadBatch::Seconds(int texts) const {
  if (!costs_.known()) return 0.0;
  constexpr int kMax = Model::kMaxDraftRows;
  const int whole = texts / kMax;
  const int rest = texts % kMax;
  return whole * costs_.Seconds(kMax) + (rest > 0 ? costs_.Seconds(rest) : 0.0);
}

Status HeadBatch::ProposeTogether(std::span<DraftAsk> asks) {
  return Guarded("no memory for the drafts of a head", [&]() -> Status {
    Clock::time_point start = Clock::now();
    AddRows(asks);
    if (rows_.empty()) return Status::Ok();
    std::optional<Transaction> round;
    if (!engine_.model().head_reads_cache()) {
      std::size_t max = 0;
      for (const Row& row : rows_) max = std::max(max, row.max);
      Cache* const caches[] = {&CacheOfLayer(engine_.cache(), engine_.info().layers)};
      KVCACHE_ASSIGN_OR_RETURN(
          round, Transaction::Begin(caches, lengths_,
                                    {.max_tokens = static_cast<Position>(max), .isolated = true}));
    }
    while (!rows_.empty()) {
      const int rows = static_cast<int>(rows_.size());
      KVCACHE_RETURN_IF_ERROR(RunPass());
      const Clock::time_point end = Clock::now();
      costs_.Count(rows, std::chrono::duration<double>(end - start).count());
      start = end;
    }
    return Status::Ok();
  });
}

// A text whose last state is not known has no drafts.
void HeadBatch::AddRows(std::span<DraftAsk> asks) {
  rows_.clear();
  lengths_.clear();
  if (states_.size() < asks.size() * hidden_size_) states_.resize(asks.size() * hidden_size_);
  if (logits_.size() < asks.size() * logits_size_) logits_.resize(asks.size() * logits_size_);
  for (const DraftAsk& ask : asks) {
    ask.drafts->clear();
    const auto& text = static_cast<const HeadDrafter&>(*ask.drafter);
    const int max = std::min(ask.max, engine_.context() - text.at() - 1);
    const float* const state = engine_.states()->Find(text.sequence(), text.at() - 1);
    if (max < 1 || state == nullptr) continue;
    std::copy_n(state, hidden_size_, states_.data() + rows_.size() * hidden_size_);
    rows_.push_back({.text = &text, .drafts = ask.drafts, .max = static_cast<std::size_t>(max)});
    lengths_.push_back({text.sequence(), text.at()});
  }
}

// All drafts of a head that reads the model's cache are at the position of the last token, and see the tokens
// before it.
Status HeadBatch::StartPass() {
  const bool reads = engine_.model().head_reads_cache();
  const bool same = tokens_.size() == rows_.size() && !rows_.front().drafts->empty();
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  lengths_.clear();
  for (const Row& row : rows_) {
    tokens_.push_back(row.token());
    positions_.push_back(row.text->at() + (reads ? 0 : static_cast<Position>(row.drafts->size())));
    sequences_.push_back(row.text->sequence());
    lengths_.push_back({row.text->sequence(), row.text->at()});
  }
  if (reads) {
    return same ? Status::Ok() : engine_.model().BeginDrafts(engine_.cache(), lengths_);
  }
  return CacheOfLayer(engine_.cache(), engine_.info().layers)
      .StartForward({.positions = positions_, .sequences = sequences_, .items = {}},
                    ForwardMode::kCompute);
}

Status HeadBatch::RunPass() {
  KVCACHE_RETURN_IF_ERROR(StartPass());
  KVCACHE_RETURN_IF_ERROR(engine_.model().Draft(tokens_, positions_, states_.data(),
                                                engine_.cache(), logits_.data(), states_.data()));
  std::size_t left = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!AddDraft(i)) continue;
    if (left < i) {
      rows_[left] = rows_[i];
      std::copy_n(states_.data() + i * hidden_size_, hidden_size_,
                  states_.data() + left * hidden_size_);
    }
    ++left;
  }
  rows_.resize(left);
  return Status::Ok();
}

bool HeadBatch::AddDraft(std::size_t index) {
  Row& row = rows_[index];
  const std::span logits(logits_.data() + index * logits_size_, logits_size_);
  const std::size_t best = LikeliestLogit(logits);
  row.drafts->push_back(head_tokens_.empty() ? static_cast<std::int32_t>(best)
                                             : head_tokens_[best]);
  return row.drafts->size() < row.max && !engine_.IsEndOfGeneration(row.token());
}

}  // namespace

std::unique_ptr<BatchDrafter> MakeHeadBatch(Engine& engine) {
  return std::make_unique<HeadBatch>(engine);
}

Result<std::unique_ptr<Drafter>> MakeHeadDrafter(Engine& engine) {
  if (!engine.has_draft_head()) {
    return NotFound("the engine was opened without a draft head");
  }
  return std::unique_ptr<Drafter>(std::make_unique<HeadDrafter>(engine.head_batch()));
}

}  // namespace kvcache
