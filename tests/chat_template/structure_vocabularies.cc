#include "structure_vocabularies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tokenizer/bpe/byte_alphabet.h"

namespace kvcache {

const std::vector<std::string>& Marks() {
  static const std::vector<std::string> marks = {"<s>",
                                                 "</s>",
                                                 "<|im_start|>",
                                                 "<|im_end|>",
                                                 "<|start_header_id|>",
                                                 "<|end_header_id|>",
                                                 "<|eot_id|>",
                                                 "<|python_tag|>",
                                                 "<start_of_turn>",
                                                 "<end_of_turn>",
                                                 "<start_of_image>",
                                                 "[INST]",
                                                 "[/INST]",
                                                 "[AVAILABLE_TOOLS]",
                                                 "[/AVAILABLE_TOOLS]",
                                                 "[TOOL_CALLS]",
                                                 "[TOOL_RESULTS]",
                                                 "[/TOOL_RESULTS]",
                                                 "<|system|>",
                                                 "<|user|>",
                                                 "<|assistant|>",
                                                 "<|tool|>",
                                                 "<|/tool|>",
                                                 "<|end|>",
                                                 "<|start|>",
                                                 "<|message|>",
                                                 "<|channel|>",
                                                 "<|constrain|>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<think>",
                                                 "</think>",
                                                 "<tool_call>",
                                                 "</tool_call>",
                                                 "<tool_response>",
                                                 "</tool_response>",
                                                 "<tools>",
                                                 "</tools>",
                                                 "<|turn>",
                                                 "<turn|>",
                                                 "<|channel>",
                                                 "<|tool_call>",
                                                 "<tool_response|>",
                                                 "<|\"|>",
                                                 "<｜User｜>",
                                                 "<｜Assistant｜>",
                                                 "<｜end▁of▁sentence｜>",
                                                 "<|narrator|>",
                                                 "]~b]",
                                                 "[e~[",
                                                 "{tool}",
                                                 "|||NAME|||"};
  return marks;
}

const std::vector<std::string>& Texts() {
  static const std::vector<std::string> texts = {"\n\n",      "\n",    "   ",       "<h1>",
                                                 "</table>",  "USER:", "###",       "ASSISTANT:",
                                                 "### Tool:", "```",   "assistant", "user\n"};
  return texts;
}

namespace {

constexpr std::int32_t kNormal = 1;
constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUserDefined = 4;

class Builder {
 public:
  explicit Builder(std::string kind) { data_.model = std::move(kind); }

  void Add(const std::string& text, std::int32_t type, float score = 0) {
    if (!known_.insert(text).second) return;
    data_.tokens.push_back(text);
    data_.types.push_back(type);
    data_.scores.push_back(score);
  }

  std::string Spelled(std::string_view text) const {
    return data_.model == "gpt2" ? SpellBytes(text) : std::string(text);
  }

  // Adds tokens and merges that join the characters of `text` one by one into a single token.
  void AddMerges(const std::string& text) {
    std::size_t at = 0;
    while (at < text.size()) {
      std::size_t next = at + 1;
      while (next < text.size() && (text[next] & 0xC0) == 0x80) ++next;
      const std::string whole = text.substr(0, next);
      if (at > 0 || next > 1) Add(Spelled(text.substr(at, next - at)), kNormal, -1);
      if (next < text.size()) Add(Spelled(whole), kNormal, -1);
      if (at > 0) {
        data_.merges.push_back(Spelled(text.substr(0, at)) + " " +
                               Spelled(text.substr(at, next - at)));
      }
      at = next;
    }
  }

  std::unique_ptr<Tokenizer> Make(const std::vector<std::string>& marks, std::int32_t mark_type) {
    Add("<unk>", 2);
    for (const std::string& mark : marks) Add(mark, mark_type);
    for (const std::string& text : Texts()) Add(text, kUserDefined);
    if (data_.model == "gpt2") {
      for (int c = 0; c < 256; ++c) Add(SpellBytes(std::string(1, static_cast<char>(c))), kNormal);
    } else {
      for (int c = 0; c < 256; ++c) {
        constexpr char kHex[] = "0123456789ABCDEF";
        Add(std::string("<0x") + kHex[c / 16] + kHex[c % 16] + ">", 6);
      }
      Add("▁", kNormal, -2);
      for (char c = '!'; c <= '~'; ++c) Add(std::string(1, c), kNormal, -2);
    }
    for (const std::string& mark : marks) AddMerges(mark);
    for (const std::string& text : Texts()) {
      if (text.find_first_of(" \n") == std::string::npos) AddMerges(text);
    }
    const auto id = [this](std::string_view text) {
      return std::find(data_.tokens.begin(), data_.tokens.end(), text) - data_.tokens.begin();
    };
    data_.unknown = 0;
    data_.bos = id("<s>");
    data_.eos = id("</s>");
    data_.add_bos = true;
    data_.add_space_prefix = false;
    if (data_.model == "gpt2") data_.pre = "llama-bpe";
    auto made = MakeTokenizer(data_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

 private:
  TokenizerData data_;
  std::set<std::string> known_;
};

}  // namespace

std::vector<Named> TokenizersOf(const std::vector<std::string>& marks) {
  std::vector<Named> made;
  for (const char* kind : {"llama", "gpt2", "t5", "gemma4"}) {
    for (const std::int32_t type : {kControl, kUserDefined}) {
      made.push_back({std::string(kind) + (type == kControl ? ", control" : ", user-defined"),
                      Builder(kind).Make(marks, type)});
    }
  }
  return made;
}

const std::vector<Named>& Tokenizers() {
  static const std::vector<Named> all = TokenizersOf(Marks());
  return all;
}

}  // namespace kvcache
