#include "model/load/spellings.h"

#include <algorithm>
#include <iterator>

namespace kvcache {
namespace {

constexpr Renamed kGemma3nKeys[] = {{"attention.key_length", "head_dim"},
                                    {"attention.value_length", "head_dim"},
                                    {"rope.freq_base_swa", "rope.freq_base_local"}};
constexpr Renamed kGptOssTensors[] = {{"attn_output", "attn_out"},
                                      {"attn_sinks.weight", "attn_sinks"},
                                      {"post_attention_norm", "ffn_norm"}};
constexpr Renamed kLfm2Tensors[] = {{"token_embd_norm", "output_norm"}};
constexpr Renamed kMistral3Keys[] = {
    {"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"},
    {"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"},
    {"rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"},
    {"attention.temperature_scale", "rope.scaling_beta"}};
constexpr Renamed kNemotronTensors[] = {{"ffn_latent_down", "ffn_latent_in"},
                                        {"ffn_latent_up", "ffn_latent_out"}};
constexpr Renamed kQwen3NextTensors[] = {{"ssm_dt.bias", "ssm_dt"}};

constexpr Spelling kSpellings[] = {
    {.written = "gemma3n", .architecture = "gemma3n", .keys = kGemma3nKeys},
    {.written = "gptoss", .architecture = "gpt-oss", .tensors = kGptOssTensors},
    {.written = "lfm2", .architecture = "lfm2", .tensors = kLfm2Tensors},
    {.written = "mistral3", .architecture = "mistral3", .keys = kMistral3Keys},
    {.written = "nemotron_h_moe", .architecture = "nemotron_h_moe", .tensors = kNemotronTensors},
    {.written = "olmo3", .architecture = "olmo2"},
    {.written = "qwen3next", .architecture = "qwen3next", .tensors = kQwen3NextTensors},
};

}  // namespace

const Spelling* FindSpelling(std::string_view written) {
  const auto* const found = std::ranges::find(kSpellings, written, &Spelling::written);
  return found == std::end(kSpellings) ? nullptr : found;
}

std::string_view ArchitectureOf(std::string_view written) {
  const Spelling* const spelling = FindSpelling(written);
  return spelling == nullptr ? written : spelling->architecture;
}

std::string OtherTensorName(const Spelling* spelling, std::string_view name) {
  if (spelling == nullptr) return {};
  for (const Renamed& renamed : spelling->tensors) {
    const std::size_t at = name.find(renamed.ours);
    if (at == std::string_view::npos) continue;
    return std::string(name).replace(at, renamed.ours.size(), renamed.theirs);
  }
  return {};
}

std::string_view OtherKey(const Spelling* spelling, std::string_view key) {
  if (spelling == nullptr) return {};
  const auto found = std::ranges::find(spelling->keys, key, &Renamed::ours);
  return found == spelling->keys.end() ? std::string_view() : found->theirs;
}

}  // namespace kvcache
