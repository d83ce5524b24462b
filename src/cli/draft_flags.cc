#include "cli/draft_flags.h"

#include <charconv>
#include <optional>

#include "base/strings.h"
#include "cli/model_store.h"
#include "kvcache_engine/model_drafter.h"

namespace kvcache::cli {
namespace {

constexpr int kMostDrafts = 16;

// Returns the number, -1 for "auto", or nothing.
std::optional<int> ParseTokens(const std::string& text) {
  if (text == "auto") return -1;
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  if (!whole || number < 0 || number > kMostDrafts) return std::nullopt;
  return number;
}

}  // namespace

void DraftFlags::Add(FlagSet command) {
  const std::string group = "Speculation";
  command
      .AddText("--draft", &draft_,
               "who proposes tokens, which the model verifies several at a time; the text is the "
               "same: a smaller model with the same vocabulary (a .gguf file, or a name that "
               "'kvcache list' shows), ngram (what followed the same tokens before), or none")
      .Group(group)
      .ValueName("MODEL|ngram|none")
      .ShowDefault();
  command
      .AddText(
          "--draft-tokens", &tokens_,
          "tokens that are proposed at once, 0 to 16; auto: as many as were measured to be the "
          "fastest")
      .Group(group)
      .ValueName("N|auto")
      .ShowDefault();
}

Status DraftFlags::Check() const {
  if (ParseTokens(tokens_)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          StrCat("--draft-tokens is ", Quoted(tokens_), "; must be auto or a number from 0 to ",
                 kMostDrafts)};
}

Status DraftFlags::Open(const Engine& engine) {
  if (draft_ == "none") return Status::Ok();
  if (engine.has_encoder()) {
    return {StatusCode::kUnsupported, "--draft: a model with an encoder takes no drafts"};
  }
  if (draft_ == "ngram") {
    drafter_ = MakeLookupDrafter();
    return Status::Ok();
  }
  const auto open = [&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(draft_));
    KVCACHE_ASSIGN_OR_RETURN(engine_, Engine::Open(path, {.threads = engine.options().threads,
                                                          .context = engine.context()}));
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

}  // namespace kvcache::cli
