// Gemma 4: its norms are complete. Layers with a window have their own heads; the last layers have
// no keys and values of their own, though their projections may be in the file. Mixtures of experts
// are refused, as the engine has none in this architecture.
//
// Its assistant, a draft head, has the same layers without any keys and values. backbone_hidden_size stands
// beside text_config. masked_embedding.*, a shorter way to the best tokens, is left out.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "convert/hf_import.h"
#include "convert/hf_windows.h"

namespace kvcache {
namespace {

constexpr double kNotRotated = 1e30;  // divides a frequency to nothing

class Gemma4 {
 public:
  Gemma4(HfImport& import, bool assistant)
      : import_(import), config_(import.config), assistant_(assistant) {}

  Status Plan() {
    KVCACHE_RETURN_IF_ERROR(Check());
    KVCACHE_RETURN_IF_ERROR(ReadSizes());
    SetHfSizes(import_, sizes_);
    SetKeys();
    KVCACHE_RETURN_IF_ERROR(AddRope());
    KVCACHE_RETURN_IF_ERROR(PlanHfEnds(import_, sizes_, true));
    PlanInputs();
    if (assistant_) PlanProjections();
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) PlanLayer(layer);
    return Status::Ok();
  }

 private:
  bool IsWindowed(std::int64_t layer) const { return windowed_[static_cast<std::size_t>(layer)]; }
  std::int64_t HeadDim(std::int64_t layer) const {
    return IsWindowed(layer) ? sizes_.head_dim : global_dim_;
  }
  std::int64_t KvHeads(std::int64_t layer) const {
    return IsWindowed(layer) ? sizes_.kv_heads : global_kv_heads_;
  }
  std::int64_t Ffn(std::int64_t layer) const {
    return double_wide_ && layer >= sizes_.layers - shared_ ? 2 * sizes_.ffn : sizes_.ffn;
  }

  Status Check() {
    KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config_, "hidden_activation", "gelu_pytorch_tanh"));
    KVCACHE_ASSIGN_OR_RETURN(const bool experts, config_.BoolOr("enable_moe_block", false));
    if (experts) {
      return config_.Refuse("enable_moe_block", "mixtures of experts are not supported here");
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string sight,
                             config_.StringOr("use_bidirectional_attention", ""));
    return sight == "all" ? config_.Refuse("use_bidirectional_attention", "must not be all")
                          : Status::Ok();
  }

  Status ReadSizes() {
    const HfSizes defaults{.layers = 30,
                           .hidden = 2304,
                           .heads = 8,
                           .kv_heads = 4,
                           .head_dim = 256,
                           .ffn = 9216,
                           .context = 131072};
    KVCACHE_ASSIGN_OR_RETURN(sizes_, ReadHfSizes(import_, defaults));
    KVCACHE_ASSIGN_OR_RETURN(global_dim_, config_.IntOr("global_head_dim", 512, 2, 8192));
    if (global_dim_ % 2 != 0) return config_.Refuse("global_head_dim", "must be even");
    global_kv_heads_ = sizes_.kv_heads;
    KVCACHE_ASSIGN_OR_RETURN(const bool k_is_v, config_.BoolOr("attention_k_eq_v", false));
    if (k_is_v) {
      KVCACHE_ASSIGN_OR_RETURN(global_kv_heads_, config_.IntOr("num_global_key_value_heads",
                                                               sizes_.kv_heads, 1, sizes_.heads));
      if (sizes_.heads % global_kv_heads_ != 0) {
        return config_.Refuse("num_global_key_value_heads",
                              StrCat("must divide the ", sizes_.heads, " heads"));
      }
    }
    KVCACHE_RETURN_IF_ERROR(assistant_ ? ReadAssistant() : ReadLayers());
    sizes_.ffn_by_layer = double_wide_;
    KVCACHE_ASSIGN_OR_RETURN(window_,
                             config_.IntOr("sliding_window", 512, 1, std::int64_t{1} << 30));
    KVCACHE_ASSIGN_OR_RETURN(soft_cap_,
                             config_.FloatOr("final_logit_softcapping", 0.0, kHfNotNegative));
    KVCACHE_ASSIGN_OR_RETURN(windowed_, ReadHfWindows(config_, sizes_.layers, 6));
    return Status::Ok();
  }

  Status ReadLayers() {
    KVCACHE_ASSIGN_OR_RETURN(shared_,
                             config_.IntOr("num_kv_shared_layers", 0, 0, sizes_.layers - 1));
    KVCACHE_ASSIGN_OR_RETURN(input_size_,
                             config_.IntOr("hidden_size_per_layer_input", 256, 0, 1 << 16));
    if (config_.HasNull("hidden_size_per_layer_input")) input_size_ = 0;
    KVCACHE_ASSIGN_OR_RETURN(double_wide_, config_.BoolOr("use_double_wide_mlp", false));
    return Status::Ok();
  }

  // The class of assistants fills in that all layers share keys and values, and allows nothing else.
  Status ReadAssistant() {
    KVCACHE_ASSIGN_OR_RETURN(backbone_,
                             import_.outer.IntOr("backbone_hidden_size", 1536, 1, 1 << 20));
    shared_ = sizes_.layers;
    KVCACHE_ASSIGN_OR_RETURN(
        const std::int64_t shared,
        config_.IntOr("num_kv_shared_layers", sizes_.layers, 0, std::int64_t{1} << 20));
    if (shared != 0 && shared != sizes_.layers) {
      return config_.Refuse("num_kv_shared_layers",
                            StrCat("must be all ", sizes_.layers, " layers of an assistant"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t inputs,
                             config_.IntOr("hidden_size_per_layer_input", 0, 0, 1 << 16));
    if (inputs != 0) {
      return config_.Refuse("hidden_size_per_layer_input", "must be 0 in an assistant");
    }
    KVCACHE_ASSIGN_OR_RETURN(const bool wide, config_.BoolOr("use_double_wide_mlp", false));
    return wide ? config_.Refuse("use_double_wide_mlp", "must be false in an assistant")
                : Status::Ok();
  }

  void SetKeys() {
    import_.Set("attention.sliding_window", window_);
    import_.Set("attention.shared_kv_layers", shared_);
    import_.Set("embedding_length_per_layer_input", input_size_);
    import_.Set("attention.key_length", global_dim_);
    import_.Set("attention.value_length", global_dim_);
    import_.Set("attention.key_length_swa", sizes_.head_dim);
    import_.Set("attention.value_length_swa", sizes_.head_dim);
    if (soft_cap_ > 0.0) import_.SetFloat("final_logit_softcapping", soft_cap_);
    std::vector<std::int32_t> kv_heads;
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      kv_heads.push_back(static_cast<std::int32_t>(KvHeads(layer)));
    }
    import_.header.SetInts(import_.architecture + ".attention.head_count_kv", kv_heads);
    if (assistant_) {
      import_.Set("embedding_length_out", backbone_);
      import_.Set("nextn_predict_layers", sizes_.layers);
    }
    if (double_wide_) {
      std::vector<std::int32_t> ffn;
      for (std::int64_t i = 0; i < sizes_.layers; ++i) {
        ffn.push_back(static_cast<std::int32_t>(Ffn(i)));
      }
      import_.header.SetInts(import_.architecture + ".feed_forward_length", ffn);
    }
    SetHfWindowList(import_, windowed_);
  }

  // Layers without a window rotate a share of their pairs, the first ones.
  Status AddRope() {
    KVCACHE_ASSIGN_OR_RETURN(HfRope full, ReadHfRope(config_, 1e6, "full_attention"));
    KVCACHE_ASSIGN_OR_RETURN(const HfRope window,
                             ReadHfRope(config_, 10000.0, "sliding_attention"));
    if (!config_.Has("rope_parameters")) {
      full.type = "proportional";
      full.rotated = 0.25;
    }
    if (window.type != "default" || window.rotated != 1.0) {
      return config_.Refuse("rope_parameters", "sliding_attention must have rope_type default");
    }
    import_.SetFloat("rope.freq_base_swa", window.base);
    import_.Set("rope.dimension_count_swa", sizes_.head_dim);
    const bool proportional = full.type == "proportional";
    if (proportional) {
      const auto pairs = static_cast<std::size_t>(global_dim_ / 2);
      const auto rotated = static_cast<std::size_t>(
          std::floor(full.rotated * static_cast<double>(global_dim_) / 2.0));
      if (rotated > pairs)
        return full.settings.Refuse("partial_rotary_factor", "must be at most 1");
      std::vector<float> divisors(pairs, static_cast<float>(kNotRotated));
      std::fill_n(divisors.begin(), rotated, 1.0f);
      import_.planner.Values("rope_freqs.weight", std::move(divisors));
      full.type = "default";
    }
    return AddHfRope(import_, full, global_dim_, sizes_.context);
  }

  void PlanInputs() {
    if (input_size_ == 0) return;
    HfPlanner& planner = import_.planner;
    const std::int64_t all = input_size_ * sizes_.layers;
    planner.Matrix("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", all,
                   sizes_.vocabulary);
    planner.Matrix("per_layer_model_proj.weight", "per_layer_model_projection.weight",
                   sizes_.hidden, all);
    planner.Vector("per_layer_proj_norm.weight", "per_layer_projection_norm.weight", input_size_);
  }

  void PlanProjections() {
    HfPlanner& planner = import_.planner;
    planner.Matrix("nextn.pre_projection.weight", "pre_projection.weight", 2 * backbone_,
                   sizes_.hidden);
    planner.Matrix("nextn.post_projection.weight", "post_projection.weight", sizes_.hidden,
                   backbone_);
    planner.Ignore("masked_embedding.centroids.weight");
    planner.Ignore("masked_embedding.token_ordering");
  }

  void PlanAttention(const std::string& to, const std::string& from, std::int64_t layer) {
    HfPlanner& planner = import_.planner;
    const std::int64_t dim = HeadDim(layer);
    const std::int64_t keys = KvHeads(layer) * dim;
    planner.Matrix(to + "attn_q.weight", from + "q_proj.weight", sizes_.hidden, sizes_.heads * dim);
    planner.Vector(to + "attn_q_norm.weight", from + "q_norm.weight", dim);
    planner.Matrix(to + "attn_output.weight", from + "o_proj.weight", sizes_.heads * dim,
                   sizes_.hidden);
    if (layer >= sizes_.layers - shared_) {
      for (const char* unused : {"k_proj", "v_proj", "k_norm"}) {
        planner.Ignore(StrCat(from, unused, ".weight"));
      }
      return;
    }
    planner.Matrix(to + "attn_k.weight", from + "k_proj.weight", sizes_.hidden, keys);
    planner.Vector(to + "attn_k_norm.weight", from + "k_norm.weight", dim);
    if (!planner.Has(from + "v_proj.weight")) return;
    planner.Matrix(to + "attn_v.weight", from + "v_proj.weight", sizes_.hidden, keys);
  }

  void PlanLayer(std::int64_t layer) {
    HfPlanner& planner = import_.planner;
    const std::string from = StrCat("layers.", layer, ".");
    const std::string to = StrCat("blk.", layer, ".");
    const auto norm = [&](const char* name, const char* source) {
      planner.Vector(StrCat(to, name, ".weight"), StrCat(from, source, ".weight"), sizes_.hidden);
    };
    const auto matrix = [&](const char* name, const char* source, std::int64_t inputs,
                            std::int64_t outputs) {
      planner.Matrix(StrCat(to, name, ".weight"), StrCat(from, source, ".weight"), inputs, outputs);
    };
    norm("attn_norm", "input_layernorm");
    PlanAttention(to, from + "self_attn.", layer);
    norm("post_attention_norm", "post_attention_layernorm");
    norm("ffn_norm", "pre_feedforward_layernorm");
    matrix("ffn_gate", "mlp.gate_proj", sizes_.hidden, Ffn(layer));
    matrix("ffn_up", "mlp.up_proj", sizes_.hidden, Ffn(layer));
    matrix("ffn_down", "mlp.down_proj", Ffn(layer), sizes_.hidden);
    norm("post_ffw_norm", "post_feedforward_layernorm");
    if (input_size_ > 0) {
      matrix("inp_gate", "per_layer_input_gate", sizes_.hidden, input_size_);
      matrix("proj", "per_layer_projection", input_size_, sizes_.hidden);
      norm("post_norm", "post_per_layer_input_norm");
    }
    if (planner.Has(from + "layer_scalar")) {
      planner.Vector(to + "layer_output_scale.weight", from + "layer_scalar", 1);
    }
  }

  HfImport& import_;
  const HfConfig& config_;
  const bool assistant_;
  std::int64_t backbone_ = 0;  // the hidden size of an assistant's model
  HfSizes sizes_;              // head_dim and kv_heads are those of layers with a window
  std::int64_t global_dim_ = 0;
  std::int64_t global_kv_heads_ = 0;
  std::int64_t shared_ = 0;
  std::int64_t input_size_ = 0;
  std::int64_t window_ = 0;
  double soft_cap_ = 0.0;
  bool double_wide_ = false;
  std::vector<bool> windowed_;
};

}  // namespace

Status PlanHfGemma4(HfImport& import) {
  import.fallback = HfFallbackKind::kMerges;
  return Gemma4(import, false).Plan();
}

Status PlanHfGemma4Assistant(HfImport& import) {
  import.fallback = HfFallbackKind::kMerges;
  return Gemma4(import, true).Plan();
}

}  // namespace kvcache
