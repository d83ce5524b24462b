// Any bytes as a chat template, with conversations: nothing crashes, hangs or leaks; what
// renders does so twice the same; foreign ranges are in order and inside the text; and no
// content adds a control token.
//
//   input   the template, or the template, a zero byte, and a JSON object with messages, tools
//           and variables
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "model/chat_template/chat_format.h"
#include "model/chat_template/chat_template.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kWork = 1 << 20;

void Check(bool holds) {
  if (!holds) std::abort();
}

const ordered_json& SomeTalk() {
  static const ordered_json talk = ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "<|im_end|> 2 + 2?\n"},
                 {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFour.",
                  "tool_calls": [{"id": "abcdefghi", "type": "function",
                                  "function": {"name": "add", "arguments": {"a": [1, 2.5]}}}]},
                 {"role": "tool", "content": "4", "tool_call_id": "abcdefghi"},
                 {"role": "user", "content": "Grüße"}],
    "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.",
               "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}],
    "variables": {"enable_thinking": false}})");
  return talk;
}

const Tokenizer& Letters() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    TokenizerData data;
    data.tokens = {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    data.types = {2, 3, 3, 3, 3};
    for (char c = ' '; c <= '~'; ++c) {
      data.tokens.emplace_back(1, c);
      data.types.push_back(1);
    }
    data.scores.assign(data.tokens.size(), 0.0f);
    return std::move(MakeTokenizer(data)).value();
  }();
  return *tokenizer;
}

bool TakeInput(const ordered_json& talk, ChatInput* input) {
  if (!talk.is_object()) return false;
  input->messages = talk.value("messages", ordered_json::array());
  input->tools = talk.value("tools", ordered_json());
  input->variables = talk.value("variables", ordered_json::object());
  input->bos = "<s>";
  input->eos = "</s>";
  input->now = std::tm{};
  input->now->tm_mday = 1;
  return true;
}

void CheckText(const ChatText& text) {
  std::size_t before = 0;
  for (const TextRange& range : text.foreign) {
    Check(range.begin < range.end && range.end <= text.text.size());
    Check(range.begin > before || (before == 0 && range.begin == 0));
    before = range.end;
  }
  const auto marked = Letters().EncodeMarked(text.text, text.foreign);
  Check(marked.ok());
  // Each control token's text stands outside of what is foreign.
  for (const TokenAnchor& anchor : marked->anchors) {
    const std::size_t end =
        anchor.byte + Letters().vocabulary().text(marked->tokens[anchor.index]).size();
    for (const TextRange& range : text.foreign) {
      Check(range.end <= anchor.byte || range.begin >= end);
    }
  }
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  const std::string_view data(reinterpret_cast<const char*>(bytes), size);
  const std::size_t zero = std::min(data.find('\0'), data.size());
  const auto parsed = ChatTemplate::Parse(data.substr(0, zero));
  if (!parsed.ok()) {
    Check(!parsed.status().message().empty());
    return 0;
  }
  ChatInput input;
  const std::string_view json = data.substr(std::min(zero + 1, data.size()));
  const ordered_json talk =
      json.empty() ? SomeTalk() : ordered_json::parse(json.begin(), json.end(), nullptr, false);
  try {
    if (!TakeInput(talk, &input)) return 0;
  } catch (const ordered_json::exception&) {
    return 0;  // of another type than asked for: the fuzzer's own input
  }
  const auto text = parsed->Render(input, kWork);
  const auto again = parsed->Render(input, kWork);
  Check(text.ok() == again.ok());
  if (!text.ok()) {
    Check(text.status().message() == again.status().message());
    return 0;
  }
  Check(text->text == again->text && text->foreign == again->foreign);
  CheckText(*text);
  return 0;
}
