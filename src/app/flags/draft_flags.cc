#include "app/flags/draft_flags.h"

#include <optional>

#include "app/flags/gpu_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/model_drafter.h"
#include "model/model.h"

namespace kvcache::app {
namespace {

constexpr const char* kDraftGroup = "Speculation";
constexpr int kMaxDrafts = 16;

// Returns the number, -1 for "auto", or nothing.
std::optional<int> ParseTokens(const std::string& text) {
  if (text == "auto") return -1;
  const auto number = ParseNumber<int>(text);
  return number && *number >= 0 && *number <= kMaxDrafts ? number : std::nullopt;
}

}  // namespace

void AddDraftFlag(FlagSet command, std::string* draft) {
  command
      .AddText(
          "--draft", draft,
          "who proposes tokens, which the model verifies several at a time; texts are the "
          "same: a smaller model with the same vocabulary or a draft head for this model (a "
          ".gguf file, or a name that 'kvcache list' shows), head (the one in the model's "
          "file), ngram (what followed the same tokens before), or none (default: the DRAFT of "
          "a model that has one)")
      .Group(kDraftGroup)
      .ValueName("MODEL|head|ngram|none");
}

void DraftFlags::Add(FlagSet command) {
  AddDraftFlag(command, &draft_);
  command
      .AddText(
          "--draft-tokens", &tokens_,
          "tokens that are proposed at once, 0 to 16; auto: as many as were measured to be the "
          "fastest")
      .Group(kDraftGroup)
      .ValueName("N|auto")
      .ShowDefault();
}

Status DraftFlags::Check() const {
  if (ParseTokens(tokens_)) return Status::Ok();
  return InvalidArgument(StrCat("--draft-tokens is ", Quoted(tokens_),
                                "; must be auto or a number from 0 to ", kMaxDrafts));
}

bool NamesDraftFile(const std::string& draft) {
  return !draft.empty() && draft != "none" && draft != "ngram" && draft != "head";
}

Result<std::string> FindDraftHead(const std::string& draft, const std::string& model) {
  if (draft != "head" && !NamesDraftFile(draft)) return std::string();
  KVCACHE_ASSIGN_OR_RETURN(std::string path, FindModel(draft == "head" ? model : draft));
  if (draft == "head") return path;
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  return HasOnlyDraftHead(*file) ? path : std::string();
}

Result<std::string> DraftFlags::HeadFile(const std::string& model) const {
  auto path = FindDraftHead(draft_, model);
  return path.ok() ? std::move(path) : std::move(path).TakeStatus().WithContext("--draft");
}

Status DraftFlags::Open(Engine& engine) {
  if (draft_.empty() || draft_ == "none") return Status::Ok();
  if (engine.has_encoder()) {
    return Unsupported("--draft: a model with an encoder takes no drafts");
  }
  if (draft_ == "ngram") {
    drafter_ = MakeLookupDrafter();
    return Status::Ok();
  }
  const auto open = [&]() -> Status {
    if (engine.has_draft_head()) {
      KVCACHE_ASSIGN_OR_RETURN(drafter_, MakeHeadDrafter(engine));
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(draft_));
    KVCACHE_ASSIGN_OR_RETURN(engine_, Engine::Open(path, {.threads = engine.options().threads,
                                                          .uses_numa = engine.options().uses_numa,
                                                          .gpu_layers = GpuLayersOfDraft(engine),
                                                          .context = engine.context()}));
    AddDetail(StrCat("draft model: ", engine_->machine()));
    KVCACHE_ASSIGN_OR_RETURN(drafter_, MakeModelDrafter(*engine_, engine));
    return Status::Ok();
  };
  Status status = open();
  return status.ok() ? Status::Ok() : std::move(status).WithContext("--draft");
}

void DraftFlags::Fill(GenerateRequest& request) const {
  request.drafter = drafter_.get();
  request.draft_tokens = *ParseTokens(tokens_);
}

}  // namespace kvcache::app
