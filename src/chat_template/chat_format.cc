#include "chat_template/chat_format.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "chat_template/picture_places.h"
#include "gguf/gguf.h"

namespace kvcache {
namespace {

constexpr std::string_view kKey = "tokenizer.chat_template";
constexpr std::string_view kToolKey = "tokenizer.chat_template.tool_use";

constexpr std::string_view kStartMark = "<|im_start|>";
constexpr std::string_view kEndMark = "<|im_end|>";

constexpr std::string_view kChatMl = R"(
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})";

// The answer continues the user's text directly. All other messages end with a line feed.
constexpr std::string_view kPlain = R"(
{%- for message in messages %}
    {{- message.content or '' }}
    {%- if message.role != 'user' and not loop.last %}
        {{- '\n' }}
    {%- endif %}
{%- endfor %})";

bool IsControl(const Tokenizer& tokenizer, std::string_view text) {
  const std::int32_t token = tokenizer.Find(text);
  if (token == kNoToken) return false;
  const TokenKind kind = tokenizer.vocabulary().kind(token);
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined;
}

std::string TextOf(const Tokenizer& tokenizer, std::int32_t token) {
  return tokenizer.vocabulary().Has(token) ? std::string(tokenizer.vocabulary().text(token))
                                           : std::string();
}

}  // namespace

Result<ChatFormat> ChatFormat::Make(ChatFormatKind kind, std::string name, std::string_view source,
                                    const Tokenizer& tokenizer) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return std::move(parsed).TakeStatus().WithContext(name);
  return ChatFormat(kind, std::move(name), std::move(parsed).value(), tokenizer);
}

Result<ChatFormat> ChatFormat::ForModel(const GgufFile& file, const Tokenizer& tokenizer,
                                        ToolUse tools) {
  const bool has_own = tools == ToolUse::kTools && file.Find(kToolKey) != nullptr;
  const std::string_view key = has_own ? kToolKey : kKey;
  if (file.Find(key) == nullptr) {
    const bool chatml = IsControl(tokenizer, kStartMark) && IsControl(tokenizer, kEndMark);
    return BuiltIn(chatml ? "chatml" : "plain", tokenizer);
  }
  const auto source = file.GetString(key);
  if (!source.ok()) return Status(source.status()).WithContext(file.path());
  return Make(ChatFormatKind::kModel, StrCat("the model's template (", key, ")"), *source,
              tokenizer);
}

Result<ChatFormat> ChatFormat::BuiltIn(std::string_view name, const Tokenizer& tokenizer) {
  if (name == "chatml") return Make(ChatFormatKind::kChatMl, "ChatML", kChatMl, tokenizer);
  if (name == "plain") return Make(ChatFormatKind::kPlain, "plain text", kPlain, tokenizer);
  return Status(StatusCode::kNotFound,
                StrCat("there is no built-in template ", Quoted(name), "; choose chatml or plain"));
}

Result<ChatFormat> ChatFormat::FromSource(std::string_view source, std::string name,
                                          const Tokenizer& tokenizer) {
  return Make(ChatFormatKind::kGiven, std::move(name), source, tokenizer);
}

bool ChatFormat::Writes(std::string_view text) const {
  const std::vector<std::string>& literals = template_.literals();
  return std::any_of(literals.begin(), literals.end(), [&](const std::string& literal) {
    return literal.find(text) != std::string::npos;
  });
}

std::vector<std::string> ChatFormat::Stops() const {
  const bool ends_by_token = tokenizer_->IsEndOfGeneration(tokenizer_->Find(kEndMark));
  if (kind_ != ChatFormatKind::kChatMl || ends_by_token) return {};
  return {std::string(kEndMark)};
}

void ChatFormat::Prepare(ChatInput& input) const {
  input.bos = TextOf(*tokenizer_, tokenizer_->bos());
  input.eos = TextOf(*tokenizer_, tokenizer_->eos());
  if (input.messages.is_array()) PlaceSystemMessages(places_, input.messages);
}

Result<std::string> ChatFormat::Probe(ChatInput input) const {
  Prepare(input);
  KVCACHE_ASSIGN_OR_RETURN(ChatText text, template_.Render(input, kProbeLimits));
  return std::move(text.text);
}

Result<ChatPrompt> ChatFormat::Write(ChatInput input, const ThoughtSyntax& thoughts) const {
  Prepare(input);
  ChatPrompt prompt;
  std::vector<PicturePtr> pictures = std::move(input.pictures);
  const PictureMarks marks = input.picture_marks;
  KVCACHE_ASSIGN_OR_RETURN(prompt.open, PrepareLastMessage(input, thoughts));
  if (prompt.open == OpenPart::kText) {
    prompt.open_text = input.messages.back()["content"].get<std::string>();
  }
  auto rendered = RenderOpen(template_, std::move(input), prompt.open, thoughts);
  if (!rendered.ok()) return std::move(rendered).TakeStatus().WithContext(name_);
  std::vector<std::size_t> places;
  if (!pictures.empty()) {
    places = PlacePictures(marks, *rendered);
    KVCACHE_RETURN_IF_ERROR(CheckPlaces(places.size(), pictures.size()).WithContext(name_));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      prompt.marked, tokenizer_->EncodeMarked(rendered->text, rendered->foreign, in_literals_));
  prompt.text = std::move(rendered->text);
  prompt.foreign = std::move(rendered->foreign);
  std::vector<std::int32_t>& tokens = prompt.marked.tokens;
  const std::int32_t bos = tokenizer_->bos();
  const bool wants_bos = tokenizer_->vocabulary().add_bos() && bos != kNoToken;
  if (wants_bos && (tokens.empty() || tokens.front() != bos)) {
    tokens.insert(tokens.begin(), bos);
    for (TokenAnchor& anchor : prompt.marked.anchors) ++anchor.index;
  }
  if (!pictures.empty()) {
    KVCACHE_RETURN_IF_ERROR(InsertPictures(places, std::move(pictures), prompt).WithContext(name_));
  }
  return prompt;
}

}  // namespace kvcache
