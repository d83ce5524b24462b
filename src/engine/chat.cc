#include "engine/chat.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  (void)localtime_r(&now, &local);
  return local;
}

ordered_json Snapshot(const ChatInput& input) {
  return {{"messages", input.messages}, {"tools", input.tools}, {"variables", input.variables}};
}

// Whether `now` only goes on from `before`.
bool GoesOn(const ordered_json& before, const ordered_json& now) {
  if (before["tools"] != now["tools"] || before["variables"] != now["variables"]) return false;
  const ordered_json& earlier = before["messages"];
  const ordered_json& later = now["messages"];
  return earlier.size() <= later.size() &&
         std::equal(earlier.begin(), earlier.end(), later.begin());
}

std::size_t CommonPrefix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(
      a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<std::size_t>(end - a.begin());
}

// The text that the generated tokens stand for in the template's text: without the space that
// encoding puts in front of text after a special token.
std::string AnswerText(const Tokenizer& tokenizer, std::int32_t before,
                       const GenerateResult& result) {
  std::string text = result.text;
  if (result.tokens.empty() || !text.starts_with(' ') || !tokenizer.vocabulary().Has(before)) {
    return text;
  }
  const TokenKind kind = tokenizer.vocabulary().kind(before);
  if (kind == TokenKind::kNormal || kind == TokenKind::kByte) return text;
  const std::int32_t both[] = {before, result.tokens.front()};
  const auto stripped = tokenizer.Decode(both);
  const auto kept = tokenizer.Decode(both, {.leading_space = LeadingSpace::kKeep});
  if (stripped.ok() && kept.ok() && stripped->size() < kept->size()) text.erase(0, 1);
  return text;
}

}  // namespace

std::string_view RewriteText(Rewrite rewrite) {
  switch (rewrite) {
    case Rewrite::kNone: return "";
    case Rewrite::kByTemplate: return "the template rewrote earlier text";
    case Rewrite::kByCaller: return "the conversation was changed";
    case Rewrite::kTokens: return "the answer's text has other tokens";
  }
  return "";
}

Chat::Chat(Engine& engine, ChatFormat format)
    : engine_(engine), format_(std::move(format)), session_(engine, SequenceId{0}) {
  input_.now = LocalTime();
}

// The prompt's tokens, but those in the cache for the text that they have in common.
Chat::Written Chat::Align(ChatPrompt prompt, std::size_t* common) const {
  *common = CommonPrefix(written_.text, prompt.text);
  Written aligned{std::move(prompt.text), std::move(prompt.marked), Snapshot(input_)};
  const std::vector<TokenAnchor>& old_anchors = written_.marked.anchors;
  std::vector<TokenAnchor>& anchors = aligned.marked.anchors;
  std::size_t old_at = old_anchors.size();
  std::size_t at = anchors.size();
  while (old_at > 0 && at > 0) {
    const std::size_t old_byte = old_anchors[old_at - 1].byte;
    const std::size_t byte = anchors[at - 1].byte;
    if (byte > *common || byte > old_byte) {
      --at;
    } else if (old_byte > byte) {
      --old_at;
    } else {
      break;
    }
  }
  if (old_at == 0 || at == 0) return aligned;
  const std::size_t old_index = old_anchors[old_at - 1].index;
  const std::size_t index = anchors[at - 1].index;
  std::vector<std::int32_t> tokens(
      written_.marked.tokens.begin(),
      written_.marked.tokens.begin() + static_cast<std::ptrdiff_t>(old_index));
  tokens.insert(tokens.end(), aligned.marked.tokens.begin() + static_cast<std::ptrdiff_t>(index),
                aligned.marked.tokens.end());
  std::vector<TokenAnchor> merged(old_anchors.begin(),
                                  old_anchors.begin() + static_cast<std::ptrdiff_t>(old_at) - 1);
  for (std::size_t i = at - 1; i < anchors.size(); ++i) {
    merged.push_back({anchors[i].byte, anchors[i].index - index + old_index});
  }
  aligned.marked = {std::move(tokens), std::move(merged)};
  return aligned;
}

Status Chat::Fits(std::size_t tokens) const {
  if (tokens == 0) return {StatusCode::kInvalidArgument, "the prompt is empty"};
  if (tokens < static_cast<std::size_t>(engine_.context())) return Status::Ok();
  return {StatusCode::kCacheFull, StrCat("the conversation has ", tokens,
                                         " tokens, the context holds ", engine_.context())};
}

// Truncates the session to what it has in common with `tokens`, one less than all of them: the
// last one's logits are wanted. Returns how many.
std::int32_t Chat::KeepCommon(const std::vector<std::int32_t>& tokens) {
  const auto held = session_.tokens();
  const std::size_t most = std::min(held.size(), tokens.size() - 1);
  std::size_t kept = 0;
  while (kept < most && held[kept] == tokens[kept]) ++kept;
  return static_cast<std::int32_t>(kept);
}

Rewrite Chat::ReasonFor(std::size_t common, const ordered_json& input) const {
  if (written_.input.is_null()) return Rewrite::kNone;
  if (!GoesOn(written_.input, input)) return Rewrite::kByCaller;
  return common < written_.text.size() ? Rewrite::kByTemplate : Rewrite::kTokens;
}

Result<ChatTurn> Chat::Answer(GenerateRequest request) {
  KVCACHE_ASSIGN_OR_RETURN(ChatPrompt prompt, format_.Write(input_));
  std::size_t common = 0;
  Written aligned = Align(std::move(prompt), &common);
  const std::vector<std::int32_t>& tokens = aligned.marked.tokens;
  KVCACHE_RETURN_IF_ERROR(Fits(tokens.size()));

  ChatTurn turn;
  turn.prompt_tokens = static_cast<std::int32_t>(tokens.size());
  turn.kept = KeepCommon(tokens);
  turn.dropped = session_.position() - turn.kept;
  // The last token of a prompt is evaluated again where all of it is there.
  if (turn.kept + 1 == turn.prompt_tokens && turn.dropped == 1) turn.dropped = 0;
  if (turn.dropped > 0) turn.rewrite = ReasonFor(common, aligned.input);
  KVCACHE_RETURN_IF_ERROR(session_.Truncate(turn.kept));
  written_ = std::move(aligned);

  request.prompt.assign(written_.marked.tokens.begin() + turn.kept, written_.marked.tokens.end());
  const std::int32_t room = engine_.context() - turn.prompt_tokens;
  if (request.max_tokens > room) request.max_tokens = -1;  // until the context is full
  for (std::string& stop : format_.Stops()) request.stop.push_back(std::move(stop));
  KVCACHE_ASSIGN_OR_RETURN(turn.result, Generate(session_, engine_, request));
  turn.context_full =
      turn.result.stop == StopReason::kLength && session_.position() >= engine_.context();
  Remember(turn.result);
  return turn;
}

void Chat::Remember(const GenerateResult& result) {
  const bool nothing = result.stop == StopReason::kInterrupted && result.tokens.empty();
  if (nothing) return;
  const std::string text = AnswerText(engine_.tokenizer(), written_.marked.tokens.back(), result);
  input_.messages.push_back({{"role", "assistant"}, {"content", text}});
  written_.text += text;
  written_.input = Snapshot(input_);
  std::vector<std::int32_t>& tokens = written_.marked.tokens;
  tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
  // A stop string's first tokens may be among them, whose text was not given out.
  if (result.stop == StopReason::kStopString) return;
  written_.marked.anchors.push_back({written_.text.size(), tokens.size()});
}

}  // namespace kvcache
