// Writes a model that says what a script says: each token has one successor. So texts of tools and
// thoughts can be tested through a real engine. Its layer adds nothing to the embedding, which is one-hot,
// and the output matrix has a row for each successor.
//
// With tools and without a result of one, it thinks, speaks and calls a tool:
//
//   <think>…</think> Let me look. <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>
//
// else it says "The sun shines."
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/status.h"

namespace kvcache {

inline constexpr std::string_view kScriptedTemplate =
    R"({{ bos_token }}{% if tools %}<|tools|>{{ tools | tojson }}{% endif %})"
    R"({% for message in messages %}<|{{ message.role }}|>)"
    R"({% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %})"
    R"({{ message.content }})"
    R"({% for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", )"
    R"("arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %})"
    R"({% if add_generation_prompt %}{% if tools and messages[-1].role != 'tool' %}<|calls|>)"
    R"({% else %}<|says|>{% endif %}{% endif %})";

// What the model calls, and how much it reads.
struct Script {
  std::string tool = "get_weather";
  std::string arguments = R"({"city": "Paris"})";  // JSON
  std::uint32_t context = 4096;
  // What it says instead of the above, a token each; no two are equal. Those in `controls` are control tokens.
  std::vector<std::string> says{};
  std::vector<std::string> controls{};
};

class ScriptedModel {
 public:
  static Status Write(const std::string& path, const Script& script = {}) {
    return ScriptedModel(script).WriteTo(path);
  }

 private:
  static constexpr std::int64_t kTokens = 320;  // also the width of the embedding
  enum Type : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

  explicit ScriptedModel(const Script& script)
      : context_(script.context), controls_(script.controls) {
    pieces_ = {"<unk>", "<s>", "</s>"};
    types_ = {kUnknown, kControl, kControl};
    constexpr std::string_view kHex = "0123456789ABCDEF";
    for (std::size_t byte = 0; byte < 256; ++byte) {
      pieces_.push_back({'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'});
      types_.push_back(kByte);
    }
    next_.assign(kTokens, 2);
    const std::size_t middle = script.arguments.size() / 2;
    std::vector<std::string> says = {"<|calls|>",
                                     "<think>\n",
                                     "The user wants",
                                     " the weather.\n",
                                     "</think>\n\n",
                                     "Let me",
                                     " look.",
                                     "\n<tool_call>\n{\"name\": \"",
                                     script.tool,
                                     "\", \"arguments\": ",
                                     script.arguments.substr(0, middle),
                                     script.arguments.substr(middle),
                                     "}\n</tool_call>"};
    if (!script.says.empty()) {
      says.resize(1);
      says.insert(says.end(), script.says.begin(), script.says.end());
    }
    Say(says);
    Say({"<|says|>", "The sun", " shines."});
    while (static_cast<std::int64_t>(pieces_.size()) < kTokens) {
      pieces_.push_back("unused" + std::to_string(pieces_.size()));
      types_.push_back(kNormal);
    }
  }

  // Adds the tokens of a script, whose first one is written by the template.
  void Say(const std::vector<std::string>& script) {
    for (std::size_t i = 0; i < script.size(); ++i) {
      std::string piece;
      for (const char c : script[i]) {
        piece += c == ' ' ? "\xe2\x96\x81" : std::string(1, c);
      }
      if (i > 0) next_[pieces_.size() - 1] = pieces_.size();
      pieces_.push_back(piece);
      const bool control =
          i == 0 || std::find(controls_.begin(), controls_.end(), script[i]) != controls_.end();
      types_.push_back(control ? kControl : kNormal);
    }
  }

  GgufHeader Header() const {
    GgufHeader header;
    header.SetString("general.architecture", "llama");
    const auto size = [&](const char* key, std::int64_t value) {
      header.SetUint32(std::string("llama.") + key, static_cast<std::uint32_t>(value));
    };
    size("block_count", 1);
    size("context_length", context_);
    size("embedding_length", kTokens);
    size("feed_forward_length", 32);
    size("attention.head_count", 2);
    size("attention.head_count_kv", 2);
    size("attention.key_length", 16);
    size("attention.value_length", 16);
    size("rope.dimension_count", 16);
    header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    header.SetString("tokenizer.ggml.model", "llama");
    header.SetStrings("tokenizer.ggml.tokens", pieces_);
    header.SetFloats("tokenizer.ggml.scores", std::vector<float>(pieces_.size(), -1.0f));
    header.SetInts("tokenizer.ggml.token_type", types_);
    header.SetUint32("tokenizer.ggml.unknown_token_id", 0);
    header.SetUint32("tokenizer.ggml.bos_token_id", 1);
    header.SetUint32("tokenizer.ggml.eos_token_id", 2);
    header.SetBool("tokenizer.ggml.add_bos_token", true);
    header.SetBool("tokenizer.ggml.add_space_prefix", false);
    header.SetString("tokenizer.chat_template", kScriptedTemplate);
    return header;
  }

  Status WriteTo(const std::string& path) const {
    struct Tensor {
      const char* name;
      std::array<std::int64_t, 2> dims;
      std::vector<float> values;
    };
    constexpr auto kWidth = static_cast<std::size_t>(kTokens);
    std::vector<float> embedding(kWidth * kWidth);
    std::vector<float> output(kWidth * kWidth);
    for (std::size_t token = 0; token < kWidth; ++token) {
      embedding[token * kWidth + token] = 1.0f;
      output[next_[token] * kWidth + token] = 2.0f;
    }
    const std::vector<float> ones(kWidth, 1.0f);
    const auto zeros = [](std::int64_t count) {
      return std::vector<float>(static_cast<std::size_t>(count));
    };
    const std::int64_t heads = 32;
    const std::vector<Tensor> tensors = {
        {"token_embd.weight", {kTokens, kTokens}, embedding},
        {"output_norm.weight", {kTokens, 0}, ones},
        {"output.weight", {kTokens, kTokens}, output},
        {"blk.0.attn_norm.weight", {kTokens, 0}, ones},
        {"blk.0.attn_q.weight", {kTokens, heads}, zeros(kTokens * heads)},
        {"blk.0.attn_k.weight", {kTokens, heads}, zeros(kTokens * heads)},
        {"blk.0.attn_v.weight", {kTokens, heads}, zeros(kTokens * heads)},
        {"blk.0.attn_output.weight", {heads, kTokens}, zeros(kTokens * heads)},
        {"blk.0.ffn_norm.weight", {kTokens, 0}, ones},
        {"blk.0.ffn_gate.weight", {kTokens, 32}, zeros(kTokens * 32)},
        {"blk.0.ffn_up.weight", {kTokens, 32}, zeros(kTokens * 32)},
        {"blk.0.ffn_down.weight", {32, kTokens}, zeros(kTokens * 32)}};
    GgufHeader header = Header();
    for (const Tensor& tensor : tensors) {
      const std::size_t rank = tensor.dims[1] == 0 ? 1 : 2;
      header.AddTensor(tensor.name, GgmlType::kF32, std::span(tensor.dims).first(rank));
    }
    KVCACHE_ASSIGN_OR_RETURN(auto writer, GgufWriter::Create(path, std::move(header)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      KVCACHE_RETURN_IF_ERROR(writer->Write(i, 0, std::as_bytes(std::span(tensors[i].values))));
    }
    return writer->Finish();
  }

  std::uint32_t context_;
  std::vector<std::string> controls_;
  std::vector<std::string> pieces_;
  std::vector<std::int32_t> types_;
  std::vector<std::size_t> next_;  // the successor of each token
};

}  // namespace kvcache
