#include "kvcache_engine/chat.h"

#include <algorithm>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/model_dialect.h"
#include "engine/chat/chat_answer.h"
#include "engine/engine_impl.h"
#include "engine/request/shown_tokens.h"
#include "engine/request/text_stream.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxEarlier = 32;
constexpr std::size_t kMaxRestorePoints = 4;
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

// Returns whether a text begins with the space that encoding puts in front of text after a special token. A template
// writes the text without it.
bool HasSpaceOfEncoding(const Tokenizer& tokenizer, std::int32_t before,
                        const GenerateResult& result) {
  return !result.tokens.empty() && result.text.starts_with(' ') &&
         DropsLeadingSpace(tokenizer, before, result.tokens.front());
}

// Returns the last anchors as restore points: a template that writes earlier text anew keeps what is before one of
// them.
std::vector<Position> RestorePoints(const MarkedTokens& marked) {
  std::vector<Position> points;
  const std::span<const TokenAnchor> anchors(marked.anchors);
  for (const TokenAnchor& anchor : anchors.last(std::min(anchors.size(), kMaxRestorePoints))) {
    const auto at = static_cast<Position>(anchor.index);
    const bool ascends = at > (points.empty() ? 0 : points.back());
    if (ascends && at <= static_cast<Position>(marked.tokens.size())) points.push_back(at);
  }
  return points;
}

// Takes the pictures of `source` in its first `old_index` tokens, in the place of those in the first `index` tokens.
void AlignPictures(std::span<const PromptPicture> source, Position old_index, Position index,
                   std::vector<PromptPicture>& pictures) {
  std::vector<PromptPicture> merged;
  for (const PromptPicture& picture : source) {
    if (picture.begin < old_index) merged.push_back(picture);
  }
  for (PromptPicture& picture : pictures) {
    if (picture.begin >= index) {
      merged.push_back({picture.begin - index + old_index, std::move(picture.picture)});
    }
  }
  pictures = std::move(merged);
}

// The text that the template wrote and the model generated, and its tokens.
// Moving the JSON cannot throw, though a check inside it looks so.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct Written {
  std::string text;
  MarkedTokens marked;
  ordered_json input;  // the snapshot from which it was written
  std::vector<PromptPicture> pictures{};
};

}  // namespace

struct Chat::Impl {
  Impl(Engine& chat_engine, ModelDialect model_dialect)
      : engine(chat_engine), dialect(std::move(model_dialect)) {}

  const Written& NearestTo(std::string_view text) const;
  Written Align(ChatPrompt prompt, const Written& source) const;
  Status CheckFits(std::size_t tokens) const;
  // Returns the conversation with its pictures.
  Result<ChatInput> WithPictures();
  // Returns the tokens of the last prompt and answer that this one does not have.
  std::int32_t DroppedTokens(std::span<const std::int32_t> tokens) const;
  Result<ChatTurn> Answer(GenerateRequest request, ChatHandlers handlers);
  // Makes `aligned` what is written. Returns how it differs from what was written before.
  ChatTurn Replace(Written aligned);
  Status OpenScheduler();
  void LimitPrefixes() const;
  // Adds an answer to the messages, and its text and tokens to what is written.
  void Remember(const ChatAnswer& answer, ChatTurn& turn);
  void Append(const GenerateResult& result, bool has_space);
  Rewrite ReasonFor(std::size_t common, const ordered_json& now) const;

  ChatInput& input() { return conversation.input(); }

  Engine& engine;
  ModelDialect dialect;
  Conversation conversation;
  std::int64_t max_kept = kContextsKept * engine.context();  // tokens besides the conversation
  std::unique_ptr<Scheduler> scheduler;                      // null before the first answer
  std::vector<std::int32_t> held;  // of the last prompt and answer, what was evaluated
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
  auto dialect = ModelDialect::Make(
      [&](ToolUse tools) {
        const std::string& source = options.template_source;
        return source.empty() ? ChatFormat::ForModel(engine.file(), tokenizer, tools)
                              : ChatFormat::FromSource(source, "the given template", tokenizer);
      },
      tokenizer, options.dialect);
  if (!dialect.ok()) return std::move(dialect).TakeStatus();
  return std::make_unique<Chat>(engine, std::move(dialect).value());
}

Chat::Chat(Engine& engine, ModelDialect dialect)
    : impl_(std::make_unique<Impl>(engine, std::move(dialect))) {
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
  impl_->max_kept = std::min(impl_->max_kept, tokens);
}

const std::string& Chat::dialect_name() const {
  return impl_->dialect.dialect()->name;
}
bool Chat::calls_tools() const {
  return impl_->dialect.dialect()->has_calls();
}

const ChatFormat& Chat::format() const {
  return impl_->dialect.format(input().tools);
}

Result<ChatTurn> Chat::Answer(GenerateRequest request, ChatHandlers handlers) {
  return impl_->Answer(std::move(request), std::move(handlers));
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
  Written aligned{std::move(prompt.text), std::move(prompt.marked), InputJson(conversation.input()),
                  std::move(prompt.pictures)};
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
  AlignPictures(source.pictures, static_cast<Position>(old_index), static_cast<Position>(index),
                aligned.pictures);
  return aligned;
}

Status Chat::Impl::CheckFits(std::size_t tokens) const {
  if (tokens == 0) return InvalidArgument("the prompt is empty");
  if (tokens < static_cast<std::size_t>(engine.context())) return Status::Ok();
  return CacheFull(
      StrCat("the conversation has ", tokens, " tokens, the context holds ", engine.context()));
}

std::int32_t Chat::Impl::DroppedTokens(std::span<const std::int32_t> tokens) const {
  if (engine.has_encoder()) return 0;
  const std::size_t max = std::min(held.size(), tokens.size());
  const auto [end, ignored] =
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(max), tokens.begin());
  return static_cast<std::int32_t>(held.end() - end);
}

Rewrite Chat::Impl::ReasonFor(std::size_t common, const ordered_json& now) const {
  if (written.input.is_null()) return Rewrite::kNone;
  if (!Extends(written.input, now)) return Rewrite::kByCaller;
  return common < written.text.size() ? Rewrite::kByTemplate : Rewrite::kTokens;
}

Status Chat::Impl::OpenScheduler() {
  if (scheduler != nullptr) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(scheduler, Scheduler::Make(engine, {.one_at_a_time = true}));
  return Status::Ok();
}

void Chat::Impl::LimitPrefixes() const {
  PrefixCache& prefixes = scheduler->prefixes();
  const std::int64_t max = max_kept + std::ssize(held);
  while (prefixes.Stats().tokens > max && prefixes.Evict(prefixes.Stats().tokens - max) >= 0) {
  }
}

ChatTurn Chat::Impl::Replace(Written aligned) {
  ChatTurn turn;
  const std::size_t common = CommonPrefix(written.text, aligned.text);
  turn.dropped = DroppedTokens(aligned.marked.tokens);
  if (turn.dropped > 0) turn.rewrite = ReasonFor(common, aligned.input);
  if (common < written.text.size()) {
    earlier.push_back(std::move(written));
    if (earlier.size() > kMaxEarlier) earlier.pop_front();
  }
  written = std::move(aligned);
  return turn;
}

Result<ChatInput> Chat::Impl::WithPictures() {
  ChatInput with = input();
  KVCACHE_ASSIGN_OR_RETURN(with.pictures, conversation.Pictures());
  if (with.pictures.empty()) return with;
  KVCACHE_RETURN_IF_ERROR(engine.CheckTakesPictures());
  with.picture_marks = engine.picture_marks();
  return with;
}

Result<ChatTurn> Chat::Impl::Answer(GenerateRequest request, ChatHandlers handlers) {
  KVCACHE_ASSIGN_OR_RETURN(ChatInput with_pictures, WithPictures());
  KVCACHE_ASSIGN_OR_RETURN(DialectPrompt prompt, dialect.Write(std::move(with_pictures)));
  const Written& source = NearestTo(prompt.written.text);
  Written aligned = Align(std::move(prompt.written), source);
  KVCACHE_RETURN_IF_ERROR(CheckFits(aligned.marked.tokens.size()));
  KVCACHE_RETURN_IF_ERROR(OpenScheduler());
  ChatTurn turn = Replace(std::move(aligned));

  request.prompt = written.marked.tokens;
  request.pictures = written.pictures;
  request.restore_points = RestorePoints(written.marked);
  const auto prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t free_tokens = engine.context() - prompt_tokens;
  if (request.max_tokens > free_tokens) request.max_tokens = -1;  // until the context is full
  for (std::string& stop : dialect.Stops()) request.stop.push_back(std::move(stop));
  ChatAnswer answer(std::move(prompt.answer), std::move(request.on_text),
                    std::move(handlers.on_thoughts));
  request.on_text = [&answer](std::string_view piece) { return answer.Push(piece); };
  KVCACHE_ASSIGN_OR_RETURN(
      turn.result, GenerateShown(*scheduler, request, {dialect.dialect()->marker_tokens, kEdge}));
  if (!answer.Finish()) turn.result.stop = StopReason::kInterrupted;
  held = std::move(request.prompt);
  held.insert(held.end(), turn.result.tokens.begin(), turn.result.tokens.end());
  held.resize(std::min(held.size(), static_cast<std::size_t>(turn.result.evaluated)));
  LimitPrefixes();
  turn.context_full =
      turn.result.stop == StopReason::kLength && turn.result.evaluated >= engine.context();
  Remember(answer, turn);
  return turn;
}

void Chat::Impl::Remember(const ChatAnswer& answer, ChatTurn& turn) {
  const GenerateResult& result = turn.result;
  const bool nothing = result.stop == StopReason::kInterrupted && result.tokens.empty();
  if (!nothing) {
    const bool has_space =
        HasSpaceOfEncoding(engine.tokenizer(), written.marked.tokens.back(), result);
    std::string content = answer.text();
    if (has_space && content.starts_with(' ')) content.erase(0, 1);
    turn.calls = answer.AddTo(input().messages, std::move(content));
    Append(result, has_space);
  }
  turn.thoughts = answer.thoughts();
  turn.result.text = answer.text();
}

void Chat::Impl::Append(const GenerateResult& result, bool has_space) {
  std::vector<std::int32_t>& tokens = written.marked.tokens;
  std::vector<TokenAnchor>& anchors = written.marked.anchors;
  std::string_view rest = std::string_view(result.text).substr(has_space ? 1 : 0);
  const std::vector<std::int32_t>& markers = dialect.dialect()->marker_tokens;
  for (const std::int32_t token : result.tokens) {
    const std::size_t begin = rest.find(kEdge);
    if (begin != rest.npos && std::binary_search(markers.begin(), markers.end(), token)) {
      const std::size_t end = rest.find(kEdge, begin + 1);
      written.text += rest.substr(0, begin);
      anchors.push_back({written.text.size(), tokens.size()});
      written.text += rest.substr(begin + 1, end - begin - 1);
      rest.remove_prefix(end + 1);
    }
    tokens.push_back(token);
  }
  written.text += rest;
  written.input = InputJson(conversation.input());
  // The tokens may include the first ones of a stop string, whose text was not returned.
  if (result.stop == StopReason::kStopString) return;
  anchors.push_back({written.text.size(), tokens.size()});
}

}  // namespace kvcache
