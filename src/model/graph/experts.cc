#include "model/graph/experts.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model/adapter/adapter_bank.h"

namespace kvcache {
namespace {

// Adds to each slot's column its expert's row of `bias`. `rows` is temporary memory for those rows.
void AddBiases(Pass& pass, ExpertRouting& routing, const std::optional<TensorView>& bias,
               const TensorView& rows, const TensorView& columns) {
  if (!bias.has_value() || !pass.runs()) return;
  const TensorView gathered =
      TensorView::Dense(rows.data, DType::kF32, columns.dims[0], columns.dims[1]);
  pass.Check(routing.GatherExperts(*bias, gathered));
  pass.Add(columns, gathered);
}

// Multiplies each slot's column by its expert's factor.
void ScaleSlots(Pass& pass, ExpertRouting& routing, std::span<const float> factors,
                const TensorView& columns) {
  if (factors.empty() || !pass.runs()) return;
  pass.Check(routing.ScaleByExpert(columns, factors));
}

// Adds to the products of all slots what the adapters of their tokens say.
void Adapt(Pass& pass, ExpertRouting& routing, const TensorView& x,
           std::span<const AdapterBank::Product> products) {
  AdapterBank* const adapters = pass.adapters();
  if (adapters == nullptr || !pass.runs()) return;
  const Result<ExpertSlots> slots = routing.Slots();
  if (!slots.ok()) return pass.Check(slots.status());
  pass.Check(adapters->ApplySlots(pass.backend(), x, slots.value().tokens, slots.value().experts,
                                  products));
}

// Multiplies each slot's column of x with its expert's matrices.
void Multiply(Pass& pass, ExpertRouting& routing, const TensorView& x,
              std::span<const ExpertOutput> outputs) {
  if (pass.runs()) pass.Check(routing.Linear(x, outputs));
}

}  // namespace

Status ExpertPlan::Reserve(const RoutingSizes& sizes) {
  sizes_ = sizes;
  backend_ = nullptr;
  own_.reset();
  return host_.Reserve(sizes);
}

Result<ExpertRouting*> ExpertPlan::RoutingOf(Backend& backend) {
  if (backend_ != &backend) {
    KVCACHE_ASSIGN_OR_RETURN(own_, backend.MakeRouting(sizes_));
    backend_ = &backend;
    host_.Use(backend);
  }
  return own_ != nullptr ? own_.get() : &host_;
}

Result<Experts> Experts::Load(WeightReader& reader, const std::string& prefix,
                              std::int64_t hidden_size, const ExpertParams& params) {
  const bool scored = params.selection_bias || params.groups > 1;
  if (scored && params.count > RouterOptions::kMaxScored) {
    return Unsupported(StrCat(params.count, " experts with a bias or groups, at most ",
                              RouterOptions::kMaxScored, " are served"));
  }
  Experts experts;
  experts.params = params;
  KVCACHE_ASSIGN_OR_RETURN(experts.router,
                           reader.Linear(prefix + "ffn_gate_inp", hidden_size, params.count,
                                         params.biases ? Bias::kRequired : Bias::kNone));
  if (params.selection_bias) {
    KVCACHE_ASSIGN_OR_RETURN(experts.selection_bias,
                             reader.FloatsIfPresent(prefix + "exp_probs_b.bias", params.count));
  }
  KVCACHE_RETURN_IF_ERROR(
      experts.LoadStacks(reader, prefix, params.latent > 0 ? params.latent : hidden_size));
  if (params.biases) KVCACHE_RETURN_IF_ERROR(experts.LoadBiases(reader, prefix, hidden_size));
  return experts;
}

Status Experts::LoadStacks(WeightReader& reader, const std::string& prefix, std::int64_t width) {
  const std::string fused = prefix + "ffn_gate_up_exps.weight";
  if (params.gated && reader.Has(fused)) {
    KVCACHE_ASSIGN_OR_RETURN(up, reader.StackOfPairs(fused, width, params.ffn, params.count));
    KVCACHE_ASSIGN_OR_RETURN(up_factors,
                             reader.ScalesOf(prefix + "ffn_gate_up_exps", params.count));
    gate_factors = up_factors;
    is_fused = true;
  } else {
    if (params.gated) {
      KVCACHE_ASSIGN_OR_RETURN(
          gate, reader.Stack(prefix + "ffn_gate_exps.weight", width, params.ffn, params.count));
      KVCACHE_ASSIGN_OR_RETURN(gate_factors,
                               reader.ScalesOf(prefix + "ffn_gate_exps", params.count));
    }
    KVCACHE_ASSIGN_OR_RETURN(
        up, reader.Stack(prefix + "ffn_up_exps.weight", width, params.ffn, params.count));
    KVCACHE_ASSIGN_OR_RETURN(up_factors, reader.ScalesOf(prefix + "ffn_up_exps", params.count));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      down, reader.Stack(prefix + "ffn_down_exps.weight", params.ffn, width, params.count));
  KVCACHE_ASSIGN_OR_RETURN(factors, reader.ScalesOf(prefix + "ffn_down_exps", params.count));
  if (down->dtype() == DType::kNVFP4 && !factors.empty()) {
    reader.ForgetSite(prefix +
                      "ffn_down_exps.weight");  // they would multiply an adapter's part too
  }
  return Status::Ok();
}

RouterOptions Experts::router_options() const {
  return {.chosen = params.used,
          .gate = params.gate,
          .weights = params.renormalize ? RouterOptions::Weights::kNormalized
                                        : RouterOptions::Weights::kGateValues,
          .scale = params.weights_scale,
          .selection_bias = selection_bias,
          .groups = params.groups,
          .groups_used = params.groups_used,
          .group_best = params.group_best};
}

Status Experts::LoadBiases(WeightReader& reader, const std::string& prefix,
                           std::int64_t hidden_size) {
  const auto load = [&](const char* name, std::int64_t outputs) {
    return reader.Table(prefix + name, outputs, params.count);
  };
  KVCACHE_ASSIGN_OR_RETURN(gate_bias, load("ffn_gate_exps.bias", params.ffn));
  KVCACHE_ASSIGN_OR_RETURN(up_bias, load("ffn_up_exps.bias", params.ffn));
  KVCACHE_ASSIGN_OR_RETURN(down_bias, load("ffn_down_exps.bias", hidden_size));
  return Status::Ok();
}

void Experts::Gate(Pass& pass, const TensorView& gate_out, const TensorView& up_out) const {
  if (params.gate_limit > 0.0f) {
    pass.GateClamped(gate_out, up_out, params.gate_alpha, params.gate_limit);
  } else if (params.gated) {
    pass.Gate(gate_out, up_out, params.activation);
  } else {
    pass.Activate(up_out, params.activation);
  }
}

void Experts::MultiplyGateAndUp(Pass& pass, ExpertRouting& routing, const TensorView& x,
                                const TensorView& gate_out, const TensorView& up_out) const {
  const std::int64_t step = is_fused ? 2 : 1;
  const LinearWeight* const by_gate = is_fused ? up.get() : gate.get();
  const ExpertOutput outputs[] = {{by_gate, gate_out, 0, step}, {up.get(), up_out, step - 1, step}};
  Multiply(pass, routing, x, std::span(outputs).last(params.gated ? 2 : 1));
  ScaleSlots(pass, routing, gate_factors, gate_out);
  ScaleSlots(pass, routing, up_factors, up_out);
  const AdapterBank::Product products[] = {{{up.get(), up_out, step - 1}, step},
                                           {{by_gate, gate_out, 0}, step}};
  Adapt(pass, routing, x, std::span(products).first(params.gated ? 2 : 1));
}

void Experts::Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const {
  const Pass::Scope scope(pass);
  const TensorView logits = pass.TakeHidden(params.count);
  pass.Linear(h, {{router, logits}});
  RunRouted(pass, plan, logits, h, out);
}

void Experts::RunRouted(Pass& pass, ExpertPlan& plan, const TensorView& logits, const TensorView& h,
                        const TensorView& out) const {
  const Pass::Scope scope(pass);
  const std::int64_t batch = pass.batch();
  const std::int64_t slots = batch * params.used;
  if (pass.measuring()) {
    pass.Check(plan.Reserve({.tokens = batch, .experts = params.count, .chosen = params.used}));
  }
  // The experts' inputs by slot; their outputs later overwrite them.
  const TensorView columns = pass.Take(h.dims[0], slots);
  const TensorView gate_out = pass.Take(params.gated ? params.ffn : 0, slots);
  const TensorView up_out = pass.Take(params.ffn, slots);
  const std::int64_t widest = std::max<std::int64_t>(h.dims[0], params.ffn);
  const TensorView biases = pass.Take(params.biases ? widest : 0, slots);

  if (!pass.runs()) return;
  const Result<ExpertRouting*> of_backend = plan.RoutingOf(pass.backend());
  if (!of_backend.ok()) return pass.Check(of_backend.status());
  ExpertRouting& routing = *of_backend.value();
  pass.Check(routing.Route(logits, router_options(), factors));
  // A single token's experts can all read h itself, unless each reads it with its own weight.
  const bool gathers = batch > 1 || params.weigh_input;
  if (gathers && pass.runs()) pass.Check(routing.GatherTokens(h, columns));
  if (params.weigh_input && pass.runs()) pass.Check(routing.WeighInputs(columns));
  MultiplyGateAndUp(pass, routing, gathers ? columns : h, gate_out, up_out);
  AddBiases(pass, routing, gate_bias, biases, gate_out);
  AddBiases(pass, routing, up_bias, biases, up_out);
  Gate(pass, gate_out, up_out);
  const TensorView& inner = params.gated ? gate_out : up_out;
  const ExpertOutput outputs[] = {{down.get(), columns}};
  Multiply(pass, routing, inner, outputs);
  const AdapterBank::Product product[] = {{{down.get(), columns, 0}, 1}};
  Adapt(pass, routing, inner, product);
  AddBiases(pass, routing, down_bias, biases, columns);
  if (pass.runs()) pass.Check(routing.Combine(columns, out));
}

}  // namespace kvcache
