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
    return WithMemory([&] { return Draft(most, drafts); });
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

  Status Draft(int most, std::vector<std::int32_t>& drafts) {
    most = std::min(most, engine_.context() - static_cast<int>(text_.size()));
    if (most < 1) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(ReadText());
    for (int i = 0; i < most; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session_.LastLogits());
      const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                  logits.begin());
      drafts.push_back(best);
      if (engine_.IsEndOfGeneration(best)) break;
      if (i + 1 < most) KVCACHE_RETURN_IF_ERROR(session_.Append({&best, 1}));
    }
    return Status::Ok();
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
