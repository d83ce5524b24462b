// Drafts of a smaller model, which has a sequence of its own.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/model_drafter.h"
#include "kvcache_engine/session.h"

namespace kvcache {
namespace {

constexpr float kAlternative = 2.0f;  // below the logit of the best token, at most

class ModelDrafter final : public Drafter {
 public:
  explicit ModelDrafter(Engine& engine) : engine_(engine), session_(engine, SequenceId{0}) {}

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
  // The tokens that are nearly as likely as the best one are alternatives. They cost no pass of the draft
  // model, which goes on after the best one only.
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
    KVCACHE_RETURN_IF_ERROR(ReadText());
    std::int32_t at = -1;
    while (static_cast<int>(tree_.size()) < most) {
      KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session_.LastLogits());
      const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                  logits.begin());
      const std::int32_t next = tree_.Add(at, best);
      AddAlternatives(at, best, most, branches, logits);
      if (engine_.IsEndOfGeneration(best)) break;
      if (static_cast<int>(tree_.size()) < most) {
        KVCACHE_RETURN_IF_ERROR(session_.Append({&best, 1}));
      }
      at = next;
    }
    return Status::Ok();
  }

  void AddAlternatives(std::int32_t at, std::int32_t best, int most, int branches,
                       std::span<const float> logits) {
    for (int added = 1; added < branches && static_cast<int>(tree_.size()) < most; ++added) {
      std::int32_t other = -1;
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const auto token = static_cast<std::int32_t>(i);
        if (token == best || tree_.Find(at, token) >= 0) continue;
        if (other < 0 || logits[i] > logits[static_cast<std::size_t>(other)]) other = token;
      }
      if (other < 0 || logits[static_cast<std::size_t>(other)] <
                           logits[static_cast<std::size_t>(best)] - kAlternative) {
        return;
      }
      tree_.Add(at, other);
    }
  }

  // Goes back over drafts that were wrong, and evaluates what is new, at least the last token.
  Status ReadText() {
    const auto held = session_.tokens();
    const std::size_t most = std::min(held.size(), text_.size() - 1);
    const auto same = std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(most),
                                    text_.begin());
    KVCACHE_RETURN_IF_ERROR(session_.GoBackTo(static_cast<Position>(same.first - held.begin())));
    return session_.Append(std::span(text_).subspan(session_.tokens().size()));
  }

  Engine& engine_;
  Session session_;
  std::vector<std::int32_t> text_;
  DraftTree tree_;
};

Status CheckSameVocabulary(const Engine& draft, const Engine& target) {
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
  if (draft.has_encoder()) {
    return Status(StatusCode::kUnsupported, "a model with an encoder cannot draft");
  }
  KVCACHE_RETURN_IF_ERROR(CheckSameVocabulary(draft, target));
  return std::unique_ptr<Drafter>(std::make_unique<ModelDrafter>(draft));
}

}  // namespace kvcache
