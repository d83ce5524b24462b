#include "kvcache_engine/chat.h"

#include <algorithm>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "chat_template/chat_format.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/session_prefixes.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostEarlier = 32;
constexpr std::size_t kMostRestorePoints = 4;
constexpr std::int64_t kContextsKept = 2;  // prefixes besides the conversation, in contexts

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  (void)localtime_r(&now, &local);
  return local;
}

ordered_json InputJson(const ChatInput& input) {
  return {{"messages", input.messages}, {"tools", input.tools}, {"variables", input.variables}};
}

// Returns whether `now` is `before` with messages added.
bool Extends(const ordered_json& before, const ordered_json& now) {
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

// Returns the generated text as the template will write it: without the space that encoding puts in
// front of text after a special token.
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

// The text that the template wrote and the model generated, and its tokens.
// Moving the JSON cannot throw, though a check inside it looks so.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct Written {
  std::string text;
  MarkedTokens marked;
  ordered_json input;  // the snapshot from which it was written
};

}  // namespace

struct Chat::Impl {
  Impl(Engine& chat_engine, ChatFormat chat_format)
      : engine(chat_engine), format(std::move(chat_format)), session(chat_engine, SequenceId{0}) {}

  const Written& NearestTo(std::string_view text) const;
  Written Align(ChatPrompt prompt, const Written& source) const;
  Result<SessionReuse> Reuse(std::span<const std::int32_t> tokens,
                             std::span<const TokenAnchor> anchors);
  Status CheckFits(std::size_t tokens) const;
  std::int32_t CommonTokens(const std::vector<std::int32_t>& tokens) const;
  Result<ChatTurn> Answer(GenerateRequest request);
  static void TakeTextReuse(ChatTurn& turn);
  void Remember(const GenerateResult& result);
  Rewrite ReasonFor(std::size_t common, const ordered_json& now) const;

  ChatInput& input() { return conversation.input(); }

  Engine& engine;
  ChatFormat format;
  Conversation conversation;
  Session session;
  std::int64_t most_kept = kContextsKept * engine.context();  // tokens
  std::unique_ptr<SessionPrefixes> prefixes;                  // null for a model with an encoder
  Written written;
  std::deque<Written> earlier;  // that `written` does not continue, newest last
};

std::string_view RewriteText(Rewrite rewrite) {
  switch (rewrite) {
    case Rewrite::kNone: return "";
    case Rewrite::kByTemplate: return "the template rewrote earlier text";
    case Rewrite::kByCaller: return "the conversation was changed";
    case Rewrite::kTokens: return "the answer's text has other tokens";
  }
  return "";
}

Result<std::unique_ptr<Chat>> Chat::Open(Engine& engine, const ChatOptions& options) {
  const Tokenizer& tokenizer = engine.tokenizer();
  auto format =
      options.template_source.empty()
          ? ChatFormat::ForModel(engine.file(), tokenizer,
                                 options.use_tools ? ToolUse::kTools : ToolUse::kNone)
          : ChatFormat::FromSource(options.template_source, "the given template", tokenizer);
  if (!format.ok()) return std::move(format).TakeStatus();
  return std::make_unique<Chat>(engine, std::move(format).value());
}

Chat::Chat(Engine& engine, ChatFormat format)
    : impl_(std::make_unique<Impl>(engine, std::move(format))) {
  impl_->input().now = LocalTime();
}

Chat::~Chat() = default;

Conversation& Chat::conversation() {
  return impl_->conversation;
}
const Conversation& Chat::conversation() const {
  return impl_->conversation;
}
void Chat::LimitKept(std::int64_t tokens) {
  impl_->most_kept = std::min(impl_->most_kept, tokens);
}

Session& Chat::session() {
  return impl_->session;
}
const ChatFormat& Chat::format() const {
  return impl_->format;
}

Result<ChatTurn> Chat::Answer(GenerateRequest request) {
  return impl_->Answer(std::move(request));
}

// Returns what was written before and has the longest text in common.
const Written& Chat::Impl::NearestTo(std::string_view text) const {
  const Written* nearest = &written;
  std::size_t longest = CommonPrefix(written.text, text);
  for (const Written& other : earlier) {
    const std::size_t common = CommonPrefix(other.text, text);
    if (common <= longest) continue;
    nearest = &other;
    longest = common;
  }
  return *nearest;
}

// Returns the prompt's text with its tokens; for the text in common with `source`, the tokens of
// `source` up to the last anchor.
Written Chat::Impl::Align(ChatPrompt prompt, const Written& source) const {
  const std::size_t common = CommonPrefix(source.text, prompt.text);
  Written aligned{std::move(prompt.text), std::move(prompt.marked),
                  InputJson(conversation.input())};
  const std::vector<TokenAnchor>& old_anchors = source.marked.anchors;
  std::vector<TokenAnchor>& anchors = aligned.marked.anchors;
  std::size_t old_at = old_anchors.size();
  std::size_t at = anchors.size();
  while (old_at > 0 && at > 0) {
    const std::size_t old_byte = old_anchors[old_at - 1].byte;
    const std::size_t byte = anchors[at - 1].byte;
    if (byte > common || byte > old_byte) {
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
      source.marked.tokens.begin(),
      source.marked.tokens.begin() + static_cast<std::ptrdiff_t>(old_index));
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

Status Chat::Impl::CheckFits(std::size_t tokens) const {
  if (tokens == 0) return {StatusCode::kInvalidArgument, "the prompt is empty"};
  if (tokens < static_cast<std::size_t>(engine.context())) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("the conversation has ", tokens, " tokens, the context holds ", engine.context())};
}

// Returns the length of the common prefix of the session and `tokens`. It is at most one less than
// all of them: the last token is evaluated for its logits.
std::int32_t Chat::Impl::CommonTokens(const std::vector<std::int32_t>& tokens) const {
  const auto held = session.tokens();
  const std::size_t most = std::min(held.size(), tokens.size() - 1);
  std::size_t kept = 0;
  while (kept < most && held[kept] == tokens[kept]) ++kept;
  return static_cast<std::int32_t>(kept);
}

// Brings the session to the longest prefix of the prompt that it has or had. The last anchors are
// restore points: a template that writes earlier text anew keeps what is before one of them.
Result<SessionReuse> Chat::Impl::Reuse(std::span<const std::int32_t> tokens,
                                       std::span<const TokenAnchor> anchors) {
  if (engine.has_encoder()) {
    SessionReuse match;
    match.resumed = match.matched = CommonTokens({tokens.begin(), tokens.end()});
    KVCACHE_RETURN_IF_ERROR(session.Truncate(match.resumed));
    return match;
  }
  if (prefixes == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(prefixes, SessionPrefixes::Make(engine, session, most_kept));
  }
  std::vector<Position> points;
  const std::size_t first = anchors.size() - std::min(anchors.size(), kMostRestorePoints);
  for (const TokenAnchor& anchor : anchors.subspan(first)) {
    const auto at = static_cast<Position>(anchor.index);
    if (at > (points.empty() ? 0 : points.back()) && at <= static_cast<Position>(tokens.size())) {
      points.push_back(at);
    }
  }
  return prefixes->Begin(tokens, points);
}

Rewrite Chat::Impl::ReasonFor(std::size_t common, const ordered_json& now) const {
  if (written.input.is_null()) return Rewrite::kNone;
  if (!Extends(written.input, now)) return Rewrite::kByCaller;
  return common < written.text.size() ? Rewrite::kByTemplate : Rewrite::kTokens;
}

Result<ChatTurn> Chat::Impl::Answer(GenerateRequest request) {
  KVCACHE_ASSIGN_OR_RETURN(ChatPrompt prompt, format.Write(input()));
  const std::size_t common = CommonPrefix(written.text, prompt.text);
  const Written& source = NearestTo(prompt.text);
  Written aligned = Align(std::move(prompt), source);
  const std::vector<std::int32_t>& tokens = aligned.marked.tokens;
  KVCACHE_RETURN_IF_ERROR(CheckFits(tokens.size()));

  ChatTurn turn;
  turn.prompt_tokens = static_cast<std::int32_t>(tokens.size());
  const std::int32_t held = CommonTokens(tokens);
  turn.dropped = session.position() - held;
  // If the cache holds the whole prompt, its last token is evaluated again.
  if (held + 1 == turn.prompt_tokens && turn.dropped == 1) turn.dropped = 0;
  if (turn.dropped > 0) turn.rewrite = ReasonFor(common, aligned.input);
  KVCACHE_ASSIGN_OR_RETURN(SessionReuse reuse, Reuse(tokens, aligned.marked.anchors));
  turn.stored = reuse.stored;
  turn.tiers = reuse.tiers;
  turn.restore_ms = reuse.restore_ms;
  turn.store_problem = std::move(reuse.problem);
  turn.reuse = std::move(reuse);
  turn.kept = turn.reuse.resumed;
  if (common < written.text.size()) {
    earlier.push_back(std::move(written));
    if (earlier.size() > kMostEarlier) earlier.pop_front();
  }
  written = std::move(aligned);

  request.prompt.assign(written.marked.tokens.begin() + turn.kept, written.marked.tokens.end());
  const std::int32_t free_tokens = engine.context() - turn.prompt_tokens;
  if (request.max_tokens > free_tokens) request.max_tokens = -1;  // until the context is full
  for (std::string& stop : format.Stops()) request.stop.push_back(std::move(stop));
  if (prefixes != nullptr) {
    request.on_prefill = [this, show = std::move(request.on_prefill)](std::int32_t done) {
      prefixes->Evaluated();
      if (show) show(done);
    };
  }
  KVCACHE_ASSIGN_OR_RETURN(turn.result, Generate(session, engine, request));
  if (engine.has_encoder()) TakeTextReuse(turn);
  if (prefixes != nullptr) prefixes->End();
  turn.context_full =
      turn.result.stop == StopReason::kLength && session.position() >= engine.context();
  Remember(turn.result);
  return turn;
}

// A text that an encoder would read came from the store as a whole, or not at all.
void Chat::Impl::TakeTextReuse(ChatTurn& turn) {
  const TextReuse& reuse = turn.result.text_reuse;
  turn.result.prompt_tokens -= reuse.stored;
  turn.kept += reuse.stored;
  turn.stored = reuse.stored;
  turn.tiers = reuse.tiers;
  turn.restore_ms = reuse.store_ms;
  turn.store_problem = reuse.problem;
  turn.reuse.matched = turn.reuse.resumed = turn.kept;
}

void Chat::Impl::Remember(const GenerateResult& result) {
  const bool nothing = result.stop == StopReason::kInterrupted && result.tokens.empty();
  if (nothing) return;
  const std::string text = AnswerText(engine.tokenizer(), written.marked.tokens.back(), result);
  input().messages.push_back({{"role", "assistant"}, {"content", text}});
  written.text += text;
  written.input = InputJson(conversation.input());
  std::vector<std::int32_t>& tokens = written.marked.tokens;
  tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
  // The tokens may include the first ones of a stop string, whose text was not returned.
  if (result.stop == StopReason::kStopString) return;
  written.marked.anchors.push_back({written.text.size(), tokens.size()});
}

}  // namespace kvcache
