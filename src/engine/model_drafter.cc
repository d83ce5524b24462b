// Drafts of a smaller model, which has sequences of its own.
#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/draft_alternatives.h"
#include "engine/draft_model.h"
#include "engine/engine_impl.h"
#include "engine/likeliest_logit.h"
#include "kvcache_engine/model_drafter.h"
#include "kvcache_engine/session.h"

namespace kvcache {
namespace {

// The text is in one of `sessions`, of which only that one changes.
class ModelDrafter : public Drafter {
 public:
  using Sessions = std::span<const std::unique_ptr<Session>>;

  // Reads at most `most_read` tokens of a text at once.
  ModelDrafter(Engine& engine, Sessions sessions, std::size_t most_read)
      : engine_(engine), sessions_(sessions), most_read_(most_read) {}

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
  Status Propose(int most, std::vector<std::int32_t>& drafts) override {
    return WithMemory([&] {
      KVCACHE_RETURN_IF_ERROR(Draft(most, 1));
      drafts.insert(drafts.end(), tree_.tokens.begin(), tree_.tokens.end());
      return Status::Ok();
    });
  }
  Status ProposeTree(int most, int branches, DraftTree& tree) override {
    return WithMemory([&] {
      KVCACHE_RETURN_IF_ERROR(Draft(most, branches));
      tree = tree_;
      return Status::Ok();
    });
  }

 private:
  template <class Call>
  static Status WithMemory(const Call& call) {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      return {StatusCode::kOutOfMemory, "no memory for the drafts of a model"};
    }
  }

  Status Draft(int most, int branches) {
    tree_.Clear();
    most = std::min(most, engine_.context() - static_cast<int>(text_.size()));
    if (most < 1) return Status::Ok();
    Session& session = *sessions_[index_];
    KVCACHE_ASSIGN_OR_RETURN(const bool all, ReadText(session));
    if (!all) return Status::Ok();
    std::int32_t at = -1;
    while (static_cast<int>(tree_.size()) < most) {
      KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session.LastLogits());
      const std::size_t likeliest = LikeliestLogit(logits);
      const auto best = static_cast<std::int32_t>(likeliest);
      const std::int32_t next = tree_.Add(at, best);
      AddAlternatives(logits, {}, likeliest, at, branches, static_cast<std::size_t>(most), tree_);
      if (engine_.IsEndOfGeneration(best)) break;
      if (static_cast<int>(tree_.size()) < most) {
        KVCACHE_RETURN_IF_ERROR(session.Append({&best, 1}));
      }
      at = next;
    }
    return Status::Ok();
  }

  // Goes back over drafts that were wrong, and evaluates what is new, at least the last token. Returns
  // whether all is read.
  Result<bool> ReadText(Session& session) const {
    const auto held = session.tokens();
    const std::size_t most = std::min(held.size(), text_.size() - 1);
    const auto same = std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(most),
                                    text_.begin());
    KVCACHE_RETURN_IF_ERROR(session.GoBackTo(static_cast<Position>(same.first - held.begin())));
    const auto next = std::span(text_).subspan(session.tokens().size());
    KVCACHE_RETURN_IF_ERROR(session.Append(next.first(std::min(next.size(), most_read_))));
    return next.size() <= most_read_;
  }

  Engine& engine_;
  Sessions sessions_;
  std::size_t index_ = 0;
  std::size_t most_read_;
  std::vector<std::int32_t> text_;
  DraftTree tree_;
};

// Has the only sequence of a model, whatever the text's is.
class OwnModelDrafter final : public ModelDrafter {
 public:
  explicit OwnModelDrafter(Engine& engine)
      : ModelDrafter(engine, {&session_, 1}, std::numeric_limits<std::size_t>::max()),
        session_(std::make_unique<Session>(engine, SequenceId{0})) {}

  void SetSequence(SequenceId /*sequence*/) override {}

 private:
  std::unique_ptr<Session> session_;
};

Status CheckCanDraft(const Engine& draft, const Engine& target) {
  if (draft.has_encoder()) {
    return {StatusCode::kUnsupported, "a model with an encoder cannot draft"};
  }
  const std::int32_t size = target.vocabulary_size();
  if (draft.vocabulary_size() != size) {
    return {StatusCode::kInvalidArgument,
            StrCat("the draft model has ", draft.vocabulary_size(), " tokens, the model ", size,
                   "; both need the same vocabulary")};
  }
  std::string own;
  std::string other;
  for (std::int32_t token = 0; token < size; ++token) {
    own.clear();
    other.clear();
    target.tokenizer().AppendPiece(token, &own);
    draft.tokenizer().AppendPiece(token, &other);
    if (own == other) continue;
    return {StatusCode::kInvalidArgument,
            StrCat("token ", token, " is ", Quoted(other), " in the draft model and ", Quoted(own),
                   " in the model; both need the same vocabulary")};
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Drafter>> MakeModelDrafter(Engine& draft, const Engine& target) {
  KVCACHE_RETURN_IF_ERROR(CheckCanDraft(draft, target));
  return std::unique_ptr<Drafter>(std::make_unique<OwnModelDrafter>(draft));
}

DraftModel::DraftModel(std::shared_ptr<Engine> draft) : draft_(std::move(draft)) {
  for (int i = 0; i < draft_->options().max_sequences; ++i) {
    sessions_.push_back(std::make_unique<Session>(*draft_, static_cast<SequenceId>(i)));
  }
}

Result<std::unique_ptr<DraftModel>> DraftModel::Make(std::shared_ptr<Engine> draft,
                                                     const Engine& target,
                                                     std::int64_t most_bytes) {
  KVCACHE_RETURN_IF_ERROR(CheckCanDraft(*draft, target));
  const int own = draft->options().max_sequences;
  if (const int needed = target.options().max_sequences; own < needed) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the draft model has ", own, " sequences, the model ", needed, "; must be as many"));
  }
  std::unique_ptr<DraftModel> made(new DraftModel(std::move(draft)));
  KVCACHE_ASSIGN_OR_RETURN(made->bytes_, made->TakeMemory());
  if (most_bytes > 0 && made->bytes_ > most_bytes) {
    return Status(StatusCode::kOutOfMemory, StrCat("the draft model takes ", made->bytes_,
                                                   " bytes; must be at most ", most_bytes));
  }
  return made;
}

// A layer has no memory before its first token.
Result<std::int64_t> DraftModel::TakeMemory() {
  const std::int32_t token[] = {0};
  KVCACHE_RETURN_IF_ERROR(sessions_.front()->Append(token));
  KVCACHE_RETURN_IF_ERROR(sessions_.front()->GoBackTo(0));
  return draft_->cache().AllocatedBytes() + draft_->WorkspaceBytes();
}

std::unique_ptr<Drafter> DraftModel::MakeDrafter() {
  return std::make_unique<ModelDrafter>(*draft_, sessions_,
                                        static_cast<std::size_t>(draft_->max_batch()));
}

}  // namespace kvcache
