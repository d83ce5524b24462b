// Writes a model that says scripts: kvcache_spoken_model PATH, with the description of the model as JSON on standard
// input:
//
//   {"template": "…", "controls": ["<|end|>", …], "ends": ["<|end|>"],
//    "scripts": [{"select": "", "tokens": ["piece", …]}, {"select": "~", "tokens": [112, …]}]}
//
// A token is a text, or the number of a byte. The model says the last script whose character `select` is in the prompt.
// A token may occur in scripts many times, so a script can be said byte by byte. Before each of its tokens the model
// writes a control token that nobody sees, a step. The step decides which token comes next; behind a token, attention
// finds the last step, because keys of later steps are larger, and its value names the next step.
//
//   embedding   is step | is token | 1 | value: 11 bits | key: 11 bits | token: 11 bits | filler | attention: 11 bits
//
// A bit is 1 or -1; a token that is no step has no value, no token, and the least key. All embeddings have the same norm.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/status.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kBits = 11;
constexpr std::size_t kMax = std::size_t{1} << kBits;
// Where the parts of an embedding begin.
constexpr std::size_t kStep = 0, kToken = 1, kOne = 2, kValue = 3, kKey = kValue + kBits,
                      kPiece = kKey + kBits, kFiller = kPiece + kBits, kFound = kFiller + 1;
constexpr std::size_t kWidth = 64, kHead = 16;
constexpr std::int32_t kNormal = 1, kControl = 3;

// Returns the characters that stand for bytes in vocabularies of GPT-2.
std::string Letters(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto is_own = [](int b) {
      return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    };
    int letter = byte;
    if (!is_own(byte)) {
      letter = 256;
      for (int b = 0; b < byte; ++b) letter += is_own(b) ? 0 : 1;
    }
    if (letter < 0x80) {
      out += static_cast<char>(letter);
    } else {
      out += static_cast<char>(0xc0 | (letter >> 6));
      out += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return out;
}

struct Matrix {
  std::array<std::int64_t, 2> dims;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(dims[0] * dims[1]));
  float& At(std::size_t row, std::size_t column) {
    return values[row * static_cast<std::size_t>(dims[0]) + column];
  }
};

class SpokenModel {
 public:
  explicit SpokenModel(const Json& description) : template_(description["template"]) {
    for (int byte = 0; byte < 256; ++byte) {
      AddToken(Letters(std::string(1, static_cast<char>(byte))), kNormal);
    }
    AddToken(Letters("\x01\x02"), kNormal);
    for (const Json& text : description["controls"]) controls_[text] = AddToken(text, kControl);
    for (const Json& text : description["ends"]) end_tokens_.push_back(controls_.at(text));
    for (const Json& script : description["scripts"]) AddScript(script);
  }

  Status WriteTo(const std::string& path) {
    const std::size_t first = texts_.size();
    for (std::size_t i = 0; i < said_.size(); ++i) {
      AddToken("<|step " + std::to_string(i) + "|>", kControl);
    }
    if (texts_.size() > kMax) return {StatusCode::kInvalidArgument, "the scripts are too long"};
    GgufHeader header = Header();
    auto tensors = Tensors(first);
    for (const auto& [name, matrix] : tensors) {
      const std::size_t rank = matrix.dims[1] == 1 ? 1 : 2;
      header.AddTensor(name, GgmlType::kF32, std::span(matrix.dims).first(rank));
    }
    KVCACHE_ASSIGN_OR_RETURN(auto writer, GgufWriter::Create(path, std::move(header)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      KVCACHE_RETURN_IF_ERROR(
          writer->Write(i, 0, std::as_bytes(std::span(tensors[i].second.values))));
    }
    return writer->Finish();
  }

 private:
  std::size_t AddToken(const std::string& text, std::int32_t type) {
    texts_.push_back(text);
    types_.push_back(type);
    return texts_.size() - 1;
  }

  // Tokens of a script are control tokens, bytes, or tokens of their own.
  void AddScript(const Json& script) {
    const std::string select = script["select"];
    if (!select.empty()) begins_[static_cast<unsigned char>(select[0])] = said_.size();
    for (const Json& token : script["tokens"]) {
      if (token.is_number()) {
        said_.push_back(token);
        continue;
      }
      const std::string text = token;
      const auto control = controls_.find(text);
      if (control != controls_.end()) {
        said_.push_back(control->second);
      } else if (text.size() == 1) {
        said_.push_back(static_cast<unsigned char>(text[0]));
      } else {
        const auto [known, is_new] = pieces_.try_emplace(text, texts_.size());
        if (is_new) AddToken(Letters(text), kNormal);
        said_.push_back(known->second);
      }
    }
  }

  static void SetBits(Matrix& matrix, std::size_t row, std::size_t place, std::size_t number) {
    for (std::size_t bit = 0; bit < kBits; ++bit) {
      matrix.At(row, place + bit) = (number >> bit & 1) != 0 ? 1.0f : -1.0f;
    }
  }

  Matrix Embedding(std::size_t first) const {
    Matrix matrix{{kWidth, static_cast<std::int64_t>(texts_.size())}};
    for (std::size_t token = 0; token < texts_.size(); ++token) {
      matrix.At(token, kOne) = 1.0f;
      const bool is_step = token >= first;
      matrix.At(token, is_step ? kStep : kToken) = 1.0f;
      const std::size_t step = token - first;
      const auto begin = begins_.find(token);
      SetBits(matrix, token, kKey, 0);
      if (is_step) {
        SetBits(matrix, token, kKey, step + 8);
        SetBits(matrix, token, kValue, step + 1);
        SetBits(matrix, token, kPiece, said_[step]);
      } else if (begin != begins_.end()) {
        // A later script is preferred.
        SetBits(matrix, token, kKey,
                1 + static_cast<std::size_t>(std::distance(begins_.begin(), begin)));
        SetBits(matrix, token, kValue, begin->second);
      }
      float norm = 0.0f;
      for (std::size_t i = 0; i < kWidth; ++i) norm += matrix.At(token, i) * matrix.At(token, i);
      matrix.At(token, kFiller) = std::sqrt(kNorm - norm);
    }
    return matrix;
  }

  Matrix Output(std::size_t first) const {
    Matrix matrix{{kWidth, static_cast<std::int64_t>(texts_.size())}};
    for (std::size_t token = 0; token < texts_.size(); ++token) {
      if (token < first) {
        matrix.At(token, kStep) = 100.0f;
        SetBits(matrix, token, kPiece, token);
      } else {
        matrix.At(token, kToken) = 100.0f + (token == first ? 0.1f : 0.0f);
        SetBits(matrix, token, kFound, token - first);
      }
    }
    return matrix;
  }

  std::vector<std::pair<std::string, Matrix>> Tensors(std::size_t first) const {
    constexpr auto kColumns = static_cast<std::int64_t>(kWidth);
    constexpr auto kRows = static_cast<std::int64_t>(kHead);
    // Attention sees embeddings with a root mean square of 1.
    const float unit = std::sqrt(static_cast<float>(kWidth) / kNorm);
    Matrix ones{{kColumns, 1}}, query{{kColumns, kRows}}, key = query, value = query;
    std::fill(ones.values.begin(), ones.values.end(), 1.0f);
    Matrix back{{kRows, kColumns}}, up{{kColumns, 32}}, down{{32, kColumns}};
    constexpr std::size_t kSlow = kHead - 1;  // its positions are not rotated
    query.At(kSlow, kOne) = 80.0f / unit;
    for (std::size_t bit = 0; bit < kBits; ++bit) {
      key.At(kSlow, kKey + bit) = std::ldexp(0.5f, static_cast<int>(bit)) / unit;
      value.At(bit, kValue + bit) = 1.0f / unit;
      back.At(kFound + bit, bit) = 1.0f;
    }
    return {{"token_embd.weight", Embedding(first)},
            {"output_norm.weight", ones},
            {"output.weight", Output(first)},
            {"blk.0.attn_norm.weight", ones},
            {"blk.0.attn_q.weight", query},
            {"blk.0.attn_k.weight", key},
            {"blk.0.attn_v.weight", value},
            {"blk.0.attn_output.weight", back},
            {"blk.0.ffn_norm.weight", ones},
            {"blk.0.ffn_gate.weight", up},
            {"blk.0.ffn_up.weight", up},
            {"blk.0.ffn_down.weight", down}};
  }

  GgufHeader Header() const {
    GgufHeader header;
    header.SetString("general.architecture", "llama");
    const auto size = [&](const char* key, std::size_t value) {
      header.SetUint32(std::string("llama.") + key, static_cast<std::uint32_t>(value));
    };
    size("block_count", 1);
    size("context_length", 8192);
    size("embedding_length", kWidth);
    size("feed_forward_length", 32);
    size("attention.head_count", 1);
    size("attention.head_count_kv", 1);
    size("attention.key_length", kHead);
    size("attention.value_length", kHead);
    size("rope.dimension_count", 2);
    header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    header.SetString("tokenizer.ggml.model", "gpt2");
    header.SetString("tokenizer.ggml.pre", "gpt-2");
    header.SetStrings("tokenizer.ggml.tokens", texts_);
    header.SetInts("tokenizer.ggml.token_type", types_);
    // There must be a merge. This one is of bytes that no text has.
    const std::vector<std::string> merges = {Letters("\x01") + " " + Letters("\x02")};
    header.SetStrings("tokenizer.ggml.merges", merges);
    header.SetUint32("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(end_tokens_.at(0)));
    if (end_tokens_.size() > 1) {
      header.SetUint32("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(end_tokens_[1]));
    }
    header.SetBool("tokenizer.ggml.add_bos_token", false);
    header.SetString("tokenizer.chat_template", template_);
    return header;
  }

  static constexpr float kNorm = 3 * kBits + 3;  // the square of an embedding's
  std::string template_;
  std::vector<std::string> texts_;
  std::vector<std::int32_t> types_;
  std::map<std::string, std::size_t> controls_;
  std::map<std::string, std::size_t> pieces_;  // tokens of several bytes
  std::vector<std::size_t> end_tokens_;
  std::map<std::size_t, std::size_t> begins_;  // of scripts, by the token that selects them
  std::vector<std::size_t> said_;              // the tokens of all scripts
};

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto description = nlohmann::ordered_json::parse(std::cin, nullptr, false);
  if (description.is_discarded()) return 2;
  const kvcache::Status status = kvcache::SpokenModel(description).WriteTo(argv[1]);
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
