// Qwen3-Next: three gated delta nets to one attention layer; a mixture of experts in each layer.
//
// The published norms lack a 1, except that of the delta nets.
#include <vector>

#include "base/errors.h"
#include "convert/hf_import.h"
#include "convert/hf_windows.h"
#include "convert/row_orders.h"

namespace kvcache {
namespace {

struct DeltaSizes : DeltaRows {
  std::int64_t taps = 0;
};

struct ExpertSizes {
  std::int64_t count = 0, ffn = 0, shared_ffn = 0;
};

class Qwen3Next {
 public:
  explicit Qwen3Next(HfImport& import)
      : import_(import), config_(import.config), planner_(import.planner) {}

  Status Plan() {
    KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config_, "hidden_act", "silu"));
    KVCACHE_ASSIGN_OR_RETURN(sizes_, ReadHfSizes(import_, {.head_dim = 256}));
    if (planner_.Has("mtp.fc.weight")) sizes_.draft_heads = 1;
    SetHfSizes(import_, sizes_);
    SetHfHeads(import_, sizes_);
    KVCACHE_RETURN_IF_ERROR(ReadDelta());
    KVCACHE_RETURN_IF_ERROR(ReadInterval());
    KVCACHE_RETURN_IF_ERROR(ReadExperts());
    KVCACHE_RETURN_IF_ERROR(AddRope());
    KVCACHE_RETURN_IF_ERROR(PlanHfEnds(import_, sizes_, false, ValueChange::kAddOne));
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      PlanLayer(StrCat("blk.", layer, "."), StrCat("layers.", layer, "."),
                (layer + 1) % interval_ == 0);
    }
    if (sizes_.draft_heads > 0) PlanHead(StrCat("blk.", sizes_.layers, "."));
    return Status::Ok();
  }

 private:
  Status ReadDelta() {
    KVCACHE_ASSIGN_OR_RETURN(delta_.taps, config_.IntOr("linear_conv_kernel_dim", 4, 2, 32));
    KVCACHE_ASSIGN_OR_RETURN(delta_.k_dim, config_.IntOr("linear_key_head_dim", 128, 1, 8192));
    KVCACHE_ASSIGN_OR_RETURN(delta_.v_dim, config_.IntOr("linear_value_head_dim", 128, 1, 8192));
    KVCACHE_ASSIGN_OR_RETURN(delta_.groups, config_.IntOr("linear_num_key_heads", 16, 1, 1 << 16));
    KVCACHE_ASSIGN_OR_RETURN(delta_.heads, config_.IntOr("linear_num_value_heads", 32, 1, 1 << 16));
    if (delta_.heads % delta_.groups != 0) {
      return config_.Refuse("linear_num_value_heads",
                            StrCat("must be a multiple of the ", delta_.groups, " key heads"));
    }
    import_.Set("ssm.conv_kernel", delta_.taps);
    import_.Set("ssm.inner_size", delta_.inner());
    import_.Set("ssm.state_size", delta_.k_dim);
    import_.Set("ssm.time_step_rank", delta_.heads);
    import_.Set("ssm.group_count", delta_.groups);
    return Status::Ok();
  }

  Status ReadInterval() {
    KVCACHE_ASSIGN_OR_RETURN(interval_, config_.IntOr("full_attention_interval", 4, 1, 4096));
    KVCACHE_ASSIGN_OR_RETURN(const auto types, ReadHfLayerTypes(config_, sizes_.layers));
    for (std::size_t i = 0; i < types.size(); ++i) {
      const bool full = (static_cast<std::int64_t>(i) + 1) % interval_ == 0;
      if (types[i] == (full ? "full_attention" : "linear_attention")) continue;
      return config_.Refuse("layer_types", StrCat("every ", interval_,
                                                  "th layer must be full_attention and the "
                                                  "others linear_attention"));
    }
    import_.Set("full_attention_interval", interval_);
    return Status::Ok();
  }

  Status ReadExperts() {
    KVCACHE_ASSIGN_OR_RETURN(experts_.count, config_.IntOr("num_experts", 512, 1, 1 << 16));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t used,
                             config_.IntOr("num_experts_per_tok", 10, 1, experts_.count));
    KVCACHE_ASSIGN_OR_RETURN(experts_.ffn, config_.IntOr("moe_intermediate_size", 512, 1, 1 << 20));
    KVCACHE_ASSIGN_OR_RETURN(experts_.shared_ffn,
                             config_.IntOr("shared_expert_intermediate_size", 512, 1, 1 << 20));
    KVCACHE_ASSIGN_OR_RETURN(const bool renormalized, config_.BoolOr("norm_topk_prob", true));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t step,
                             config_.IntOr("decoder_sparse_step", 1, 1, 4096));
    if (step != 1) return config_.Refuse("decoder_sparse_step", "must be 1");
    KVCACHE_RETURN_IF_ERROR(CheckNoHfList(config_, "mlp_only_layers"));
    import_.Set("expert_count", experts_.count);
    import_.Set("expert_used_count", used);
    import_.Set("expert_feed_forward_length", experts_.ffn);
    import_.Set("expert_shared_feed_forward_length", experts_.shared_ffn);
    if (!renormalized) import_.header.SetBool("qwen3next.expert_weights_norm", false);
    return Status::Ok();
  }

  Status AddRope() {
    KVCACHE_ASSIGN_OR_RETURN(HfRope rope, ReadHfRope(config_, 10000.0));
    if (!config_.Has("partial_rotary_factor") && !rope.settings.Has("partial_rotary_factor")) {
      rope.rotated = 0.25;
    }
    const auto dims =
        static_cast<std::int64_t>(rope.rotated * static_cast<double>(sizes_.head_dim));
    if (dims < 2 || dims > sizes_.head_dim || dims % 2 != 0) {
      return config_.Refuse("partial_rotary_factor", "must rotate an even number of values");
    }
    return AddHfRope(import_, rope, dims, sizes_.context);
  }

  void Norm(const std::string& name, const std::string& source, std::int64_t size) {
    planner_.Vector(name, source, size, {.change = ValueChange::kAddOne});
  }

  void PlanLayer(const std::string& to, const std::string& from, bool attention) {
    Norm(to + "attn_norm.weight", from + "input_layernorm.weight", sizes_.hidden);
    if (attention) {
      PlanAttention(to, from + "self_attn.");
    } else {
      PlanDelta(to, from + "linear_attn.");
    }
    Norm(to + "post_attention_norm.weight", from + "post_attention_layernorm.weight",
         sizes_.hidden);
    PlanExperts(to, from + "mlp.");
  }

  // The draft head: its norms lack a 1 too.
  void PlanHead(const std::string& to) {
    planner_.Matrix(to + "nextn.eh_proj.weight", "mtp.fc.weight", 2 * sizes_.hidden, sizes_.hidden);
    Norm(to + "nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", sizes_.hidden);
    Norm(to + "nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", sizes_.hidden);
    Norm(to + "nextn.shared_head_norm.weight", "mtp.norm.weight", sizes_.hidden);
    PlanLayer(to, "mtp.layers.0.", true);
  }

  void PlanDelta(const std::string& to, const std::string& from) {
    const DeltaSizes& d = delta_;
    const std::int64_t rows = d.groups * d.block();
    planner_.Matrix(
        to + "attn_qkv.weight", from + "in_proj_qkvz.weight", sizes_.hidden, d.channels(),
        {.source_row = [d](std::int64_t row) { return d.QkvRow(row); }, .source_rows = rows});
    planner_.Matrix(
        to + "attn_gate.weight", from + "in_proj_qkvz.weight", sizes_.hidden, d.inner(),
        {.source_row = [d](std::int64_t row) { return d.ZRow(row); }, .source_rows = rows});
    planner_.Matrix(to + "ssm_ba.weight", from + "in_proj_ba.weight", sizes_.hidden, 2 * d.heads);
    planner_.Reshaped(to + "ssm_conv1d.weight", {d.taps, d.channels()}, {from + "conv1d.weight"},
                      {d.channels(), 1, d.taps}, {.f32 = true});
    planner_.Vector(to + "ssm_dt.bias", from + "dt_bias", d.heads);
    planner_.Vector(to + "ssm_a", from + "A_log", d.heads, {.change = ValueChange::kNegativeExp});
    planner_.Vector(to + "ssm_norm.weight", from + "norm.weight", d.v_dim);
    planner_.Matrix(to + "ssm_out.weight", from + "out_proj.weight", d.inner(), sizes_.hidden);
  }

  // The rows of q are each head's query, then its gate, in both layouts.
  void PlanAttention(const std::string& to, const std::string& from) {
    const std::int64_t queries = sizes_.heads * sizes_.head_dim;
    const std::int64_t keys = sizes_.kv_heads * sizes_.head_dim;
    planner_.Matrix(to + "attn_q.weight", from + "q_proj.weight", sizes_.hidden, 2 * queries);
    planner_.Matrix(to + "attn_k.weight", from + "k_proj.weight", sizes_.hidden, keys);
    planner_.Matrix(to + "attn_v.weight", from + "v_proj.weight", sizes_.hidden, keys);
    planner_.Matrix(to + "attn_output.weight", from + "o_proj.weight", queries, sizes_.hidden);
    Norm(to + "attn_q_norm.weight", from + "q_norm.weight", sizes_.head_dim);
    Norm(to + "attn_k_norm.weight", from + "k_norm.weight", sizes_.head_dim);
  }

  void PlanExperts(const std::string& to, const std::string& from) {
    const auto sources = [&](const char* name) {
      std::vector<std::string> all;
      for (std::int64_t i = 0; i < experts_.count; ++i) {
        all.push_back(StrCat(from, "experts.", i, ".", name, ".weight"));
      }
      return all;
    };
    const std::string shared = from + "shared_expert.";
    const std::int64_t hidden = sizes_.hidden;
    planner_.Matrix(to + "ffn_gate_inp.weight", from + "gate.weight", hidden, experts_.count,
                    {.f32 = true});
    planner_.Stack(to + "ffn_gate_exps.weight", sources("gate_proj"), hidden, experts_.ffn);
    planner_.Stack(to + "ffn_up_exps.weight", sources("up_proj"), hidden, experts_.ffn);
    planner_.Stack(to + "ffn_down_exps.weight", sources("down_proj"), experts_.ffn, hidden);
    planner_.Matrix(to + "ffn_gate_shexp.weight", shared + "gate_proj.weight", hidden,
                    experts_.shared_ffn);
    planner_.Matrix(to + "ffn_up_shexp.weight", shared + "up_proj.weight", hidden,
                    experts_.shared_ffn);
    planner_.Matrix(to + "ffn_down_shexp.weight", shared + "down_proj.weight", experts_.shared_ffn,
                    hidden);
    planner_.Reshaped(to + "ffn_gate_inp_shexp.weight", {hidden},
                      {from + "shared_expert_gate.weight"}, {1, hidden}, {.f32 = true});
  }

  HfImport& import_;
  const HfConfig& config_;
  HfPlanner& planner_;
  HfSizes sizes_;
  DeltaSizes delta_;
  ExpertSizes experts_;
  std::int64_t interval_ = 4;
};

}  // namespace

Status PlanHfQwen3Next(HfImport& import) {
  return Qwen3Next(import).Plan();
}

}  // namespace kvcache
