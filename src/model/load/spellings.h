// Other names of what this project reads: those that Ollama's converter has given to architectures, keys and
// tensors. Only names differ; files whose values or layouts differ are refused by the checks of keys and
// tensors.
//
//   gemma3n   head_dim and rope.freq_base_local
//   gptoss    gpt-oss; attn_out, attn_sinks and ffn_norm
//   olmo3     olmo2
//   lfm2      output_norm
//   mistral3  rope.scaling.beta_fast, beta_slow and mscale_all_dim; rope.scaling_beta
//   nemotron_h_moe   ffn_latent_in and ffn_latent_out
//   qwen3next        ssm_dt without ".bias"
//
// Source: Ollama's convert and model/models folders (v0.12), and its llama/compat.
// Thread safety: a constant table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvcache {

struct Renamed {
  std::string_view ours;    // a key without the architecture, or a part of a tensor's name
  std::string_view theirs;  // what stands in its place
};

struct Spelling {
  std::string_view written;       // general.architecture in the file
  std::string_view architecture;  // its name here
  std::span<const Renamed> keys{};
  std::span<const Renamed> tensors{};
};

// Returns the other names in files of an architecture that is called `written` there; null if there are none.
const Spelling* FindSpelling(std::string_view written);

// Returns the name here of the architecture that a file calls `written`.
std::string_view ArchitectureOf(std::string_view written);

// Returns the tensor's other name; empty if it has none. `spelling` may be null.
std::string OtherTensorName(const Spelling* spelling, std::string_view name);

// Returns the key's other name; empty if it has none. `spelling` may be null.
std::string_view OtherKey(const Spelling* spelling, std::string_view key);

}  // namespace kvcache
