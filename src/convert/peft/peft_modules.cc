#include "convert/peft/peft_modules.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "convert/row_orders.h"

namespace kvcache {
namespace {

struct ModuleName {
  std::string_view module, tensor;
};

// Modules of a layer that several families have.
constexpr ModuleName kLayerModules[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.out_proj", "ssm_out"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    // Encoders.
    {"attention.self.query", "attn_q"},
    {"attention.self.key", "attn_k"},
    {"attention.self.value", "attn_v"},
    {"attention.output.dense", "attn_output"},
    {"intermediate.dense", "ffn_up"},
    {"output.dense", "ffn_down"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.out_proj", "attn_output"},
    {"attn.Wo", "attn_output"},
    {"mlp.fc11", "ffn_up"},
    {"mlp.fc12", "ffn_gate"},
    {"mlp.fc2", "ffn_down"},
    {"mlp.Wi", "ffn_up"},
    {"mlp.Wo", "ffn_down"},
};
constexpr ModuleName kExpertModules[] = {
    {"gate_proj", "ffn_gate_exps"}, {"w1", "ffn_gate_exps"},        {"up_proj", "ffn_up_exps"},
    {"w3", "ffn_up_exps"},          {"down_proj", "ffn_down_exps"}, {"w2", "ffn_down_exps"},
};
constexpr ModuleName kModelModules[] = {
    {"embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"per_layer_model_projection", "per_layer_model_proj"},
    {"embeddings.word_embeddings", "token_embd"},
    {"embeddings.tok_embeddings", "token_embd"},
    {"pooler.dense", "cls"},
    {"head.dense", "cls"},
    {"classifier.dense", "cls"},
    {"classifier", "cls.output"},
    {"classifier.out_proj", "cls.output"},
};
constexpr std::string_view kPeftArchitectures[] = {
    "bert",  "gemma2",      "gemma3",     "gemma4", "gemma-embedding", "llama",
    "qwen2", "modern-bert", "nomic-bert", "qwen3",  "qwen3moe",        "qwen3next"};
// What the names of layers begin with.
constexpr std::string_view kLayerPrefixes[] = {"encoder.layer.", "encoder.layers.", "layers."};

std::string_view TensorOf(std::span<const ModuleName> names, std::string_view module) {
  const auto found = std::ranges::find(names, module, &ModuleName::module);
  return found == names.end() ? std::string_view() : found->tensor;
}

// Cuts a number and a dot from the beginning of `text`.
std::optional<std::int64_t> CutIndex(std::string_view* text) {
  const std::size_t dot = text->find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 7) return std::nullopt;
  const auto number = ParseNumber<std::int64_t>(std::string(text->substr(0, dot)));
  if (!number || *number < 0) return std::nullopt;
  text->remove_prefix(dot + 1);
  return number;
}

}  // namespace

Result<PeftModules> PeftModules::For(const GgufFile& base) {
  PeftModules modules;
  KVCACHE_ASSIGN_OR_RETURN(const auto architecture, base.GetString("general.architecture"));
  modules.architecture_ = architecture;
  if (std::ranges::find(kPeftArchitectures, architecture) == std::end(kPeftArchitectures)) {
    return Unsupported(StrCat("adapters in PEFT's form are not read for architecture ",
                              Quoted(architecture),
                              "; give the adapter as a GGUF file of llama.cpp's converter"));
  }
  const auto key = [&](std::string_view name) { return StrCat(architecture, ".", name); };
  const auto size = [&](std::string_view name) -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t value, base.GetIntOr(key(name), 0));
    if (value >= 0 && value <= 1 << 24) return value;
    return Corrupt(StrCat(key(name), " is ", value, "; must be from 0 to ", 1 << 24));
  };
  KVCACHE_ASSIGN_OR_RETURN(modules.experts_, size("expert_count"));
  if (modules.experts_ > 1 << 16) {
    return Corrupt(
        StrCat(key("expert_count"), " is ", modules.experts_, "; must be at most ", 1 << 16));
  }
  if (architecture == "llama") {
    KVCACHE_ASSIGN_OR_RETURN(modules.head_dim_, size("attention.key_length"));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t hidden, size("embedding_length"));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t heads, size("attention.head_count"));
    if (modules.head_dim_ == 0 && heads > 0) modules.head_dim_ = hidden / heads;
    if (modules.head_dim_ < 2 || modules.head_dim_ % 2 != 0) {
      return Corrupt(StrCat("the base has heads of ", modules.head_dim_, " values; must be even"));
    }
  }
  if (architecture == "qwen3next") {
    KVCACHE_ASSIGN_OR_RETURN(modules.k_dim_, size("ssm.state_size"));
    KVCACHE_ASSIGN_OR_RETURN(modules.groups_, size("ssm.group_count"));
    KVCACHE_ASSIGN_OR_RETURN(modules.heads_, size("ssm.time_step_rank"));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t inner, size("ssm.inner_size"));
    const bool whole = modules.k_dim_ > 0 && modules.groups_ > 0 && modules.heads_ > 0 &&
                       modules.heads_ % modules.groups_ == 0 && inner % modules.heads_ == 0;
    if (!whole) return Corrupt("the base's keys ssm.* do not fit each other");
    modules.v_dim_ = inner / modules.heads_;
  }
  return modules;
}

std::vector<PeftTarget> PeftModules::TargetsOf(std::string_view module) const {
  if (const std::string_view tensor = TensorOf(kModelModules, module); !tensor.empty()) {
    return {{.tensor = StrCat(tensor, ".weight")}};
  }
  const auto prefix = std::ranges::find_if(
      kLayerPrefixes, [&](std::string_view each) { return module.starts_with(each); });
  if (prefix == std::end(kLayerPrefixes)) return {};
  module.remove_prefix(prefix->size());
  const auto layer = CutIndex(&module);
  return layer ? InLayer(StrCat("blk.", *layer, "."), module) : std::vector<PeftTarget>();
}

std::vector<PeftTarget> PeftModules::InLayer(const std::string& prefix,
                                             std::string_view module) const {
  if (module == "linear_attn.in_proj_qkvz") return OfDelta(prefix);
  for (const std::string_view experts : {"mlp.experts.", "block_sparse_moe.experts."}) {
    if (module.starts_with(experts)) return OfExpert(prefix, module.substr(experts.size()));
  }
  const std::string_view tensor = TensorOf(kLayerModules, module);
  if (tensor.empty()) return {};
  PeftTarget target{.tensor = StrCat(prefix, tensor, ".weight")};
  if (head_dim_ > 0 && (tensor == "attn_q" || tensor == "attn_k")) {
    target.source_row = [dim = head_dim_](std::int64_t row) { return HalvesRow(row, dim); };
  }
  return {std::move(target)};
}

std::vector<PeftTarget> PeftModules::OfExpert(const std::string& prefix,
                                              std::string_view module) const {
  const auto expert = CutIndex(&module);
  const std::string_view tensor = TensorOf(kExpertModules, module);
  if (!expert || *expert >= experts_ || tensor.empty()) return {};
  return {{.tensor = StrCat(prefix, tensor, ".weight"), .expert = *expert}};
}

std::vector<PeftTarget> PeftModules::OfDelta(const std::string& prefix) const {
  if (groups_ == 0) return {};
  const DeltaRows rows{.k_dim = k_dim_, .v_dim = v_dim_, .groups = groups_, .heads = heads_};
  return {{.tensor = prefix + "attn_qkv.weight",
           .rows = rows.channels(),
           .source_rows = rows.groups * rows.block(),
           .source_row = [rows](std::int64_t row) { return rows.QkvRow(row); }},
          {.tensor = prefix + "attn_gate.weight",
           .rows = rows.inner(),
           .source_rows = rows.groups * rows.block(),
           .source_row = [rows](std::int64_t row) { return rows.ZRow(row); }}};
}

}  // namespace kvcache
