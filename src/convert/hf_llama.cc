// LlamaForCausalLM and its relatives: Mistral and Mixtral (architecture llama), Qwen 2, Qwen 3 and
// its mixture.
//
// Hugging Face rotates pairs from the two halves of a head, llama's files rotate neighbours: rows of
// q and k change places. The Qwen families rotate halves in both.
#include <vector>

#include "base/errors.h"
#include "convert/hf_import.h"
#include "convert/hf_windows.h"
#include "convert/row_orders.h"

namespace kvcache {
namespace {

struct Traits {
  bool interleaved = false;  // rows of q and k change places
  bool head_norms = false;
  bool biases = false;  // q, k and v always have biases
  double rope_base = 10000.0;
};

Traits TraitsOf(std::string_view architecture) {
  if (architecture == "qwen2") return {.biases = true};
  if (architecture == "qwen3" || architecture == "qwen3moe") return {.head_norms = true};
  return {.interleaved = true};
}

class Llama {
 public:
  Llama(HfImport& import, const HfSizes& sizes, const Traits& traits)
      : import_(import), planner_(import.planner), sizes_(sizes), traits_(traits) {}

  Status Plan() {
    KVCACHE_RETURN_IF_ERROR(ReadExperts());
    KVCACHE_RETURN_IF_ERROR(PlanHfEnds(import_, sizes_, false));
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      const std::string from = StrCat("layers.", layer, ".");
      const std::string to = StrCat("blk.", layer, ".");
      planner_.Vector(to + "attn_norm.weight", from + "input_layernorm.weight", sizes_.hidden);
      PlanAttention(to, from + "self_attn.");
      planner_.Vector(to + "ffn_norm.weight", from + "post_attention_layernorm.weight",
                      sizes_.hidden);
      experts_ > 0 ? PlanExperts(to, from) : PlanFeedForward(to, from + "mlp.");
    }
    return Status::Ok();
  }

 private:
  bool is_qwen3moe() const { return import_.architecture == "qwen3moe"; }

  Status ReadExperts() {
    const HfConfig& config = import_.config;
    const char* count = is_qwen3moe() ? "num_experts" : "num_local_experts";
    if (!is_qwen3moe() && !config.Has(count)) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(experts_, config.Int(count, 1, 1 << 16));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t used,
                             config.Int("num_experts_per_tok", 1, experts_));
    expert_ffn_ = sizes_.ffn;
    import_.Set("expert_count", experts_);
    import_.Set("expert_used_count", used);
    if (!is_qwen3moe()) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(expert_ffn_, config.Int("moe_intermediate_size", 1, 1 << 20));
    import_.Set("expert_feed_forward_length", expert_ffn_);
    KVCACHE_ASSIGN_OR_RETURN(const bool renormalized, config.BoolOr("norm_topk_prob", false));
    if (!renormalized) import_.header.SetBool("qwen3moe.expert_weights_norm", false);
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t step,
                             config.IntOr("decoder_sparse_step", 1, 1, 4096));
    if (step != 1) return config.Refuse("decoder_sparse_step", "must be 1");
    return CheckNoHfList(config, "mlp_only_layers");
  }

  PlanOptions RowsOfHeads() const {
    if (!traits_.interleaved) return {};
    return {
        .source_row = [dim = sizes_.head_dim](std::int64_t row) { return HalvesRow(row, dim); }};
  }

  // A vector's values change places as the rows of its matrix do: it is read as one value a row.
  void PlanBias(const std::string& name, const std::string& source, std::int64_t size,
                const PlanOptions& options) {
    if (!traits_.biases && !planner_.Has(source)) return;
    if (options.source_row) return planner_.Permuted(name, source, size, options.source_row);
    planner_.Vector(name, source, size);
  }

  void PlanAttention(const std::string& to, const std::string& from) {
    const std::int64_t queries = sizes_.heads * sizes_.head_dim;
    const std::int64_t keys = sizes_.kv_heads * sizes_.head_dim;
    planner_.Matrix(to + "attn_q.weight", from + "q_proj.weight", sizes_.hidden, queries,
                    RowsOfHeads());
    planner_.Matrix(to + "attn_k.weight", from + "k_proj.weight", sizes_.hidden, keys,
                    RowsOfHeads());
    planner_.Matrix(to + "attn_v.weight", from + "v_proj.weight", sizes_.hidden, keys);
    planner_.Matrix(to + "attn_output.weight", from + "o_proj.weight", queries, sizes_.hidden);
    PlanBias(to + "attn_q.bias", from + "q_proj.bias", queries, RowsOfHeads());
    PlanBias(to + "attn_k.bias", from + "k_proj.bias", keys, RowsOfHeads());
    PlanBias(to + "attn_v.bias", from + "v_proj.bias", keys, {});
    if (planner_.Has(from + "o_proj.bias")) {
      planner_.Vector(to + "attn_output.bias", from + "o_proj.bias", sizes_.hidden);
    }
    if (!traits_.head_norms) return;
    planner_.Vector(to + "attn_q_norm.weight", from + "q_norm.weight", sizes_.head_dim);
    planner_.Vector(to + "attn_k_norm.weight", from + "k_norm.weight", sizes_.head_dim);
  }

  void PlanFeedForward(const std::string& to, const std::string& from) {
    planner_.Matrix(to + "ffn_gate.weight", from + "gate_proj.weight", sizes_.hidden, sizes_.ffn);
    planner_.Matrix(to + "ffn_up.weight", from + "up_proj.weight", sizes_.hidden, sizes_.ffn);
    planner_.Matrix(to + "ffn_down.weight", from + "down_proj.weight", sizes_.ffn, sizes_.hidden);
  }

  void PlanExperts(const std::string& to, const std::string& from) {
    const std::string block = from + (is_qwen3moe() ? "mlp." : "block_sparse_moe.");
    const auto sources = [&](const char* name) {
      std::vector<std::string> all;
      for (std::int64_t i = 0; i < experts_; ++i) {
        all.push_back(StrCat(block, "experts.", i, ".", name, ".weight"));
      }
      return all;
    };
    planner_.Matrix(to + "ffn_gate_inp.weight", block + "gate.weight", sizes_.hidden, experts_,
                    {.f32 = true});
    planner_.Stack(to + "ffn_gate_exps.weight", sources(is_qwen3moe() ? "gate_proj" : "w1"),
                   sizes_.hidden, expert_ffn_);
    planner_.Stack(to + "ffn_up_exps.weight", sources(is_qwen3moe() ? "up_proj" : "w3"),
                   sizes_.hidden, expert_ffn_);
    planner_.Stack(to + "ffn_down_exps.weight", sources(is_qwen3moe() ? "down_proj" : "w2"),
                   expert_ffn_, sizes_.hidden);
  }

  HfImport& import_;
  HfPlanner& planner_;
  const HfSizes& sizes_;
  const Traits& traits_;
  std::int64_t experts_ = 0;
  std::int64_t expert_ffn_ = 0;
};

// Mistral's window applies to all layers; Qwen's applies only if use_sliding_window says so.
Status AddWindow(HfImport& import, const HfSizes& sizes, bool is_mistral) {
  const HfConfig& config = import.config;
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t window,
                           config.IntOr("sliding_window", 0, 1, std::int64_t{1} << 30));
  KVCACHE_ASSIGN_OR_RETURN(const bool windowed, config.BoolOr("use_sliding_window", false));
  if (windowed && !is_mistral) return config.Refuse("use_sliding_window", "must be false");
  const bool has_window = is_mistral && window > 0;
  if (has_window) import.Set("attention.sliding_window", window);
  return CheckHfLayerTypes(config, sizes.layers,
                           has_window ? "sliding_attention" : "full_attention");
}

// Refuses what config.json says of biases if the weights say something else.
Status CheckBiases(const HfImport& import, bool has_biases) {
  const HfConfig& config = import.config;
  KVCACHE_ASSIGN_OR_RETURN(const bool of_mlp, config.BoolOr("mlp_bias", false));
  if (of_mlp) return config.Refuse("mlp_bias", "must be false");
  const bool found = import.planner.Has("layers.0.self_attn.q_proj.bias");
  KVCACHE_ASSIGN_OR_RETURN(const bool said, config.BoolOr("attention_bias", found));
  if (has_biases || said == found) return Status::Ok();
  return config.Refuse("attention_bias",
                       StrCat("the weights have ", found ? "" : "no ", "biases of q_proj"));
}

}  // namespace

Status PlanHfLlama(HfImport& import) {
  const Traits traits = TraitsOf(import.architecture);
  const HfConfig& config = import.config;
  KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config, "hidden_act", "silu"));
  HfSizes defaults;
  // Qwen 3's class has heads of 128 unless the file says otherwise.
  if (traits.head_norms) defaults.head_dim = 128;
  KVCACHE_ASSIGN_OR_RETURN(const HfSizes sizes, ReadHfSizes(import, defaults));
  KVCACHE_ASSIGN_OR_RETURN(const std::string type, config.StringOr("model_type", ""));
  SetHfSizes(import, sizes);
  SetHfHeads(import, sizes);
  KVCACHE_RETURN_IF_ERROR(AddWindow(import, sizes, type == "mistral" || type == "mixtral"));
  KVCACHE_RETURN_IF_ERROR(CheckBiases(import, traits.biases));
  KVCACHE_ASSIGN_OR_RETURN(const HfRope rope, ReadHfRope(config, traits.rope_base));
  if (rope.rotated != 1.0) return config.Refuse("partial_rotary_factor", "must be 1");
  KVCACHE_RETURN_IF_ERROR(AddHfRope(import, rope, sizes.head_dim, sizes.context));
  return Llama(import, sizes, traits).Plan();
}

}  // namespace kvcache
