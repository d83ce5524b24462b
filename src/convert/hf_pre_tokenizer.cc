#include "convert/hf_pre_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/json_members.h"

namespace kvcache {
namespace {

using nlohmann::json;

// Stages are described one after another, each in brackets.
constexpr std::string_view kGpt2 = "[bytes with words]";
constexpr std::string_view kDigitsGpt2 = "[digits 1][bytes with words]";
constexpr std::string_view kLlama3 =
    R"re([(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+][bytes])re";
constexpr std::string_view kQwen2 =
    R"re([(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+][bytes])re";
constexpr std::string_view kQwen35 =
    R"re([(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+][bytes])re";
constexpr std::string_view kTekken =
    R"re([[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)re"
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+][bytes])re";
constexpr std::string_view kGpt4o =
    R"re([[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)re"
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+][bytes])re";
// The last stage has line ends, not their escapes.
constexpr std::string_view kDeepSeek3 = R"re([\p{N}{1,3}])re"
                                        "[[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+]"
                                        R"re([[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)re"
                                        "\r\n"
                                        R"re(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)re"
                                        "\r\n"
                                        R"re(]*|\s*[)re"
                                        "\r\n"
                                        R"re(]+|\s+(?!\S)|\s+][bytes])re";

struct Known {
  std::string_view stages;
  bool ignore_merges;
  std::string_view name;
};

// The name of several pre-tokenizers that cut alike is that of the most common models. Each word of GPT-4o's
// vocabulary that is a token merges to that token, so ignoring merges changes nothing.
constexpr std::array kKnown = {
    Known{kGpt2, false, "gpt-2"},      Known{kDigitsGpt2, false, "smollm"},
    Known{kLlama3, true, "llama-bpe"}, Known{kLlama3, false, "smaug-bpe"},
    Known{kQwen2, false, "qwen2"},     Known{kQwen35, false, "qwen35"},
    Known{kTekken, true, "tekken"},    Known{kGpt4o, false, "gpt-4o"},
    Known{kGpt4o, true, "gpt-4o"},     Known{kDeepSeek3, false, "deepseek-v3"},
};

// Describes a Split. Two writers say the same: "isolate what matches" and "remove what does not
// match", as these expressions match everything.
std::string DescribeSplit(const json& stage) {
  const bool invert = FlagOf(stage, "invert", false);
  const std::string behavior = TextOf(stage, "behavior");
  const auto pattern = stage.find("pattern");
  const bool cuts = (behavior == "Isolated" && !invert) || (behavior == "Removed" && invert);
  if (!cuts || pattern == stage.end() || !pattern->is_object() || !pattern->contains("Regex")) {
    return StrCat("[Split, behavior ", behavior, "]");
  }
  return StrCat("[", TextOf(*pattern, "Regex"), "]");
}

std::string Describe(const json& stage, int depth) {
  if (!stage.is_object() || depth > 2) return "[?]";
  const std::string type = TextOf(stage, "type");
  if (type == "Sequence") {
    std::string all;
    const auto parts = stage.find("pretokenizers");
    if (parts == stage.end() || !parts->is_array()) return "[?]";
    for (const json& part : *parts) all += Describe(part, depth + 1);
    return all;
  }
  if (type == "Split") return DescribeSplit(stage);
  if (type == "Digits") {
    return FlagOf(stage, "individual_digits", false) ? "[digits 1]" : "[digits]";
  }
  if (type != "ByteLevel") return StrCat("[", type, "]");
  const std::string space = FlagOf(stage, "add_prefix_space", true) ? " after a space" : "";
  return StrCat("[bytes", FlagOf(stage, "use_regex", true) ? " with words" : "", space, "]");
}

}  // namespace

Result<std::string> FindHfPreTokenizer(const json& pre_tokenizer, bool ignore_merges) {
  const std::string stages = Describe(pre_tokenizer, 0);
  for (const Known& known : kKnown) {
    if (known.stages == stages && known.ignore_merges == ignore_merges) {
      return std::string(known.name);
    }
  }
  return Unsupported(StrCat("pre_tokenizer is ", Quoted(stages, 400), " with ignore_merges ",
                            ignore_merges ? "true" : "false",
                            "; known are those of GPT-2, GPT-4o, SmolLM, Llama 3, Qwen 2 to 3.5, "
                            "DeepSeek V3 and Tekken"));
}

}  // namespace kvcache
