// Drafts of a smaller model, which has sequences of its own.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/drafts/draft_model.h"
#include "engine/engine_impl.h"
#include "engine/request/likeliest_logit.h"
#include "kvcache_engine/model_drafter.h"
#include "kvcache_engine/session.h"
#include "speculation/usual_time.h"

namespace kvcache {
namespace {

constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();
// A text grows by up to 256 tokens between two tries (DraftRates), and one call must read them all.
constexpr std::size_t kMaxRead = 320;
constexpr std::size_t kOfARound = DraftRates::kMax + 2;  // tokens that a round adds to a text

// The text is in one of `sessions`, of which only that one changes.
class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Engine& engine, std::span<DraftSession> sessions, std::uint64_t salt)
      : engine_(engine), sessions_(sessions), salt_(salt) {}

  void SetSequence(SequenceId sequence) override { index_ = static_cast<std::size_t>(sequence); }
  Status Begin(std::span<const std::int32_t> text) override {
    return WithMemory([&] {
      text_.assign(text.begin(), text.end());
      return Status::Ok();
    });
  }
  Status Add(std::int32_t token) override {
    return WithMemory([&] {
      text_.push_back(token);
      return Status::Ok();
    });
  }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    std::size_t may_read = kAnyNumber;
    return ProposeWithin(may_read, max, drafts);
  }
  // Reads at most `may_read` tokens more than a round adds, and takes them off.
  Status ProposeWithin(std::size_t& may_read, int max, std::vector<std::int32_t>& drafts) {
    return WithMemory([&] { return Draft(may_read, max, drafts); });
  }

 private:
  template <class Call>
  static Status WithMemory(const Call& call) {
    return Guarded("no memory for the drafts of a model", call);
  }

  Status Draft(std::size_t& may_read, int max, std::vector<std::int32_t>& drafts) {
    max = std::min(max, engine_.context() - static_cast<int>(text_.size()));
    if (max < 1) return Status::Ok();
    Session& session = *sessions_[index_].session;
    KVCACHE_ASSIGN_OR_RETURN(const bool all, ReadText(may_read));
    if (!all) return Status::Ok();
    while (true) {
      KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session.LastLogits());
      const auto best = static_cast<std::int32_t>(LikeliestLogit(logits));
      drafts.push_back(best);
      if (--max == 0 || engine_.IsEndOfGeneration(best)) return Status::Ok();
      KVCACHE_RETURN_IF_ERROR(session.Append({&best, 1}));
    }
  }

  // Goes back over drafts that were wrong, and evaluates what is new, at least the last token. Returns
  // whether all is read.
  Result<bool> ReadText(std::size_t& may_read) const {
    DraftSession& own = sessions_[index_];
    Session& session = *own.session;
    if (own.salt != salt_) KVCACHE_RETURN_IF_ERROR(session.GoBackTo(0));
    own.salt = salt_;
    const auto held = session.tokens();
    const std::size_t max = std::min(held.size(), text_.size() - 1);
    const auto same =
        std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(max), text_.begin());
    KVCACHE_RETURN_IF_ERROR(session.GoBackTo(static_cast<Position>(same.first - held.begin())));
    auto next = std::span(text_).subspan(session.tokens().size());
    const bool all = next.size() <= std::max(may_read, kOfARound);
    if (!all) next = next.first(may_read);
    if (next.size() > kOfARound || !all) may_read -= next.size();
    if (next.empty()) return false;
    KVCACHE_RETURN_IF_ERROR(session.Append(next));
    return all;
  }

  Engine& engine_;
  std::span<DraftSession> sessions_;
  std::size_t index_ = 0;
  const std::uint64_t salt_;
  std::vector<std::int32_t> text_;
};

// Has sequence 0 of a model, whatever the text's is.
class LoneModelDrafter final : public ModelDrafter {
 public:
  explicit LoneModelDrafter(Engine& engine)
      : ModelDrafter(engine, {&session_, 1}, 0),
        session_{std::make_unique<Session>(engine, SequenceId{0})} {}

  void SetSequence(SequenceId /*sequence*/) override {}

 private:
  DraftSession session_;
};

// One of many drafters of a model.
class SharedModelDrafter final : public ModelDrafter {
 public:
  SharedModelDrafter(DraftModel& model, Engine& engine, std::span<DraftSession> sessions,
                     std::uint64_t salt)
      : ModelDrafter(engine, sessions, salt), model_(model) {}

  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    std::vector<std::int32_t> proposed;
    DraftAsk ask{.drafter = this, .max = max, .drafts = &proposed};
    model_.Propose({&ask, 1});
    drafts.insert(drafts.end(), proposed.begin(), proposed.end());
    return std::move(ask.status);
  }
  BatchDrafter* batch() override { return &model_; }

 private:
  DraftModel& model_;
};

Status CheckCanDraft(const Engine& draft, const Engine& target) {
  if (draft.has_encoder()) {
    return Unsupported("a model with an encoder cannot draft");
  }
  const std::int32_t size = target.vocabulary_size();
  if (draft.vocabulary_size() != size) {
    return InvalidArgument(StrCat("the draft model has ", draft.vocabulary_size(),
                                  " tokens, the model ", size, "; both need the same vocabulary"));
  }
  std::string own;
  std::string other;
  for (std::int32_t token = 0; token < size; ++token) {
    own.clear();
    other.clear();
    target.tokenizer().AppendPiece(token, &own);
    draft.tokenizer().AppendPiece(token, &other);
    if (own == other) continue;
    return InvalidArgument(StrCat("token ", token, " is ", Quoted(other),
                                  " in the draft model and ", Quoted(own),
                                  " in the model; both need the same vocabulary"));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Drafter>> MakeModelDrafter(Engine& draft, const Engine& target) {
  KVCACHE_RETURN_IF_ERROR(CheckCanDraft(draft, target));
  return std::unique_ptr<Drafter>(std::make_unique<LoneModelDrafter>(draft));
}

DraftModel::DraftModel(std::shared_ptr<Engine> draft) : draft_(std::move(draft)) {
  for (int i = 0; i < draft_->options().max_sequences; ++i) {
    sessions_.push_back({std::make_unique<Session>(*draft_, static_cast<SequenceId>(i))});
  }
}

Result<std::unique_ptr<DraftModel>> DraftModel::Make(std::shared_ptr<Engine> draft,
                                                     const Engine& target, std::int64_t max_bytes) {
  if (draft == nullptr) return InvalidArgument("there is no draft model");
  KVCACHE_RETURN_IF_ERROR(CheckCanDraft(*draft, target));
  const int own = draft->options().max_sequences;
  if (const int needed = target.options().max_sequences; own < needed) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the draft model has ", own, " sequences, the model ", needed, "; must be as many"));
  }
  std::unique_ptr<DraftModel> made(new DraftModel(std::move(draft)));
  KVCACHE_ASSIGN_OR_RETURN(made->bytes_, made->TakeMemory());
  if (max_bytes > 0 && made->bytes_ > max_bytes) {
    return OutOfMemory(
        StrCat("the draft model takes ", made->bytes_, " bytes; must be at most ", max_bytes));
  }
  return made;
}

// A layer has no memory before its first token.
Result<std::int64_t> DraftModel::TakeMemory() {
  const std::int32_t token[] = {0};
  KVCACHE_RETURN_IF_ERROR(sessions_.front().session->Append(token));
  KVCACHE_RETURN_IF_ERROR(sessions_.front().session->GoBackTo(0));
  return draft_->cache().memory()->AllocatedBytes() + draft_->WorkspaceBytes();
}

std::unique_ptr<Drafter> DraftModel::MakeDrafter(std::uint64_t salt) {
  return std::make_unique<SharedModelDrafter>(*this, *draft_, sessions_, salt);
}

void DraftModel::Propose(std::span<DraftAsk> asks) {
  using Clock = std::chrono::steady_clock;
  std::size_t may_read = std::min(kMaxRead, static_cast<std::size_t>(draft_->max_batch()));
  for (DraftAsk& ask : asks) {
    const Clock::time_point start = Clock::now();
    const std::size_t before = may_read;
    ask.drafts->clear();
    ask.status =
        static_cast<ModelDrafter&>(*ask.drafter).ProposeWithin(may_read, ask.max, *ask.drafts);
    if (!ask.status.ok() || ask.drafts->empty() || may_read < before) continue;
    const double seconds = SecondsSince(start);
    seconds_ = UsualTime(seconds_, seconds / static_cast<double>(ask.drafts->size()));
  }
}

}  // namespace kvcache
