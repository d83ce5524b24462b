#include "model/graph/experts.h"

#include <algorithm>
#include <new>

#include "base/errors.h"
#include "base/strings.h"
#include "model/adapter/adapter_bank.h"

namespace kvcache {
namespace {

// Returns columns [begin, end) of a view.
TensorView Columns(const TensorView& view, std::int32_t begin, std::int32_t end) {
  return TensorView::Dense(view.data + begin * view.stride_bytes[1], DType::kF32, view.dims[0],
                           end - begin);
}

// Adds to each slot's column its expert's row of `bias`. `rows` is temporary memory for those rows.
void AddBiases(Pass& pass, const ExpertPlan& plan, const std::optional<TensorView>& bias,
               const TensorView& rows, const TensorView& columns) {
  if (!bias.has_value()) return;
  const TensorView gathered =
      TensorView::Dense(rows.data, DType::kF32, columns.dims[0], columns.dims[1]);
  pass.Embed(*bias, plan.expert_of_slot(), gathered);
  pass.Add(columns, gathered);
}

// Multiplies each slot's column by its expert's factor.
void ScaleSlots(Pass& pass, ExpertPlan& plan, std::span<const float> factors,
                const TensorView& columns) {
  if (factors.empty() || !pass.runs()) return;
  pass.Check(pass.backend().ScaleColumns(columns, plan.SlotFactors(factors)));
}

// Adds to the products of all slots what the adapters of their tokens say.
void Adapt(Pass& pass, const ExpertPlan& plan, const TensorView& x,
           std::span<const AdapterBank::Product> products) {
  AdapterBank* const adapters = pass.adapters();
  if (adapters == nullptr || !pass.runs()) return;
  pass.Check(adapters->ApplySlots(pass.backend(), x, plan.token_of_slot(), plan.expert_of_slot(),
                                  products));
}

}  // namespace

Status ExpertPlan::Reserve(std::int64_t batch, int experts, int chosen) {
  const auto slots = static_cast<std::size_t>(batch * chosen);
  try {
    choices_.reserve(slots);
    weights_.reserve(slots);
    slot_weights_.reserve(slots);
    slot_factors_.reserve(slots);
    token_of_slot_.reserve(slots);
    expert_of_slot_.reserve(slots);
    slots_.reserve(slots);
    begin_.assign(static_cast<std::size_t>(experts) + 1, 0);
    const std::size_t groups = std::min(slots, static_cast<std::size_t>(experts));
    groups_.reserve(groups);
    outputs_.reserve(2 * std::max(groups, static_cast<std::size_t>(chosen)));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(StrCat("no memory to route ", batch, " tokens to ", chosen, " of ", experts,
                              " experts each"));
  }
  experts_ = experts;
  chosen_ = chosen;
  return Status::Ok();
}

std::span<std::int32_t> ExpertPlan::Choices(std::int64_t batch) {
  choices_.resize(static_cast<std::size_t>(batch * chosen_));
  return choices_;
}

std::span<float> ExpertPlan::Weights(std::int64_t batch) {
  weights_.resize(static_cast<std::size_t>(batch * chosen_));
  return weights_;
}

void ExpertPlan::ScaleWeights(std::span<const float> factors) {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] *= factors[static_cast<std::size_t>(choices_[i])];
  }
}

std::span<const float> ExpertPlan::SlotFactors(std::span<const float> factors) {
  slot_factors_.resize(expert_of_slot_.size());
  for (std::size_t i = 0; i < slot_factors_.size(); ++i) {
    slot_factors_[i] = factors[static_cast<std::size_t>(expert_of_slot_[i])];
  }
  return slot_factors_;
}

void ExpertPlan::Group(std::int64_t batch) {
  const auto slots = static_cast<std::size_t>(batch * chosen_);
  token_of_slot_.resize(slots);
  expert_of_slot_.resize(slots);
  slots_.resize(slots);
  // A counting sort. begin_[e + 1] first counts the slots of expert e; the running sum makes
  // begin_[e] the first slot of e; filling moves begin_[e] up to the first slot of e + 1.
  std::ranges::fill(begin_, 0);
  for (const std::int32_t expert : choices_) ++begin_[static_cast<std::size_t>(expert) + 1];
  for (std::size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
  for (std::size_t i = 0; i < slots; ++i) {
    const std::int32_t slot = begin_[static_cast<std::size_t>(choices_[i])]++;
    slots_[i] = slot;
    expert_of_slot_[static_cast<std::size_t>(slot)] = choices_[i];
    token_of_slot_[static_cast<std::size_t>(slot)] =
        static_cast<std::int32_t>(i / static_cast<std::size_t>(chosen_));
  }
  std::shift_right(begin_.begin(), begin_.end(), 1);
  begin_[0] = 0;
}

void ExpertPlan::MoveWeightsToInputs() {
  slot_weights_.resize(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    slot_weights_[static_cast<std::size_t>(slots_[i])] = weights_[i];
    weights_[i] = 1.0f;
  }
}

std::span<const LinearGroup> ExpertPlan::GateAndUp(const LinearWeight* gate, const LinearWeight& up,
                                                   const TensorView& gathered,
                                                   const TensorView& gate_out,
                                                   const TensorView& up_out) {
  groups_.clear();
  outputs_.clear();
  // With one token, all experts multiply the same column: one group quantises it once.
  const bool one_token = gathered.dims[1] == 1;
  const bool fused = gate == &up;
  for (std::int32_t expert = 0; expert < experts_; ++expert) {
    const std::int32_t begin = begin_[static_cast<std::size_t>(expert)];
    const std::int32_t end = begin_[static_cast<std::size_t>(expert) + 1];
    if (begin == end) continue;
    if (gate != nullptr) {
      outputs_.push_back({gate, Columns(gate_out, begin, end), fused ? 2 * expert : expert});
    }
    outputs_.push_back({&up, Columns(up_out, begin, end), fused ? 2 * expert + 1 : expert});
    if (!one_token) {
      groups_.push_back(
          {Columns(gathered, begin, end), std::span(outputs_).last(gate != nullptr ? 2 : 1)});
    }
  }
  if (one_token) groups_.push_back({gathered, outputs_});
  return groups_;
}

std::span<const LinearGroup> ExpertPlan::Down(const LinearWeight& down, const TensorView& inner,
                                              const TensorView& out) {
  groups_.clear();
  outputs_.clear();
  for (std::int32_t expert = 0; expert < experts_; ++expert) {
    const std::int32_t begin = begin_[static_cast<std::size_t>(expert)];
    const std::int32_t end = begin_[static_cast<std::size_t>(expert) + 1];
    if (begin == end) continue;
    outputs_.push_back({&down, Columns(out, begin, end), expert});
    groups_.push_back({Columns(inner, begin, end), std::span(outputs_).last(1)});
  }
  return groups_;
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

void Experts::AdaptGateAndUp(Pass& pass, const ExpertPlan& plan, const TensorView& x,
                             const TensorView& gate_out, const TensorView& up_out) const {
  const std::int64_t step = is_fused ? 2 : 1;
  const AdapterBank::Product products[] = {{{up.get(), up_out, step - 1}, step},
                                           {{is_fused ? up.get() : gate.get(), gate_out, 0}, step}};
  Adapt(pass, plan, x, std::span(products).first(params.gated ? 2 : 1));
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
  if (pass.measuring()) pass.Check(plan.Reserve(batch, params.count, params.used));
  // The experts' inputs by slot; their outputs later overwrite them.
  const TensorView columns = pass.Take(h.dims[0], slots);
  const TensorView gate_out = pass.Take(params.gated ? params.ffn : 0, slots);
  const TensorView up_out = pass.Take(params.ffn, slots);
  const std::int64_t widest = std::max<std::int64_t>(h.dims[0], params.ffn);
  const TensorView biases = pass.Take(params.biases ? widest : 0, slots);

  if (!pass.runs()) return;
  Backend& backend = pass.backend();
  pass.Check(backend.Route(logits, router_options(), plan.Choices(batch), plan.Weights(batch)));
  if (!pass.runs()) return;
  if (!factors.empty()) plan.ScaleWeights(factors);
  plan.Group(batch);
  // A single token's experts can all read h itself, unless each reads it with its own weight.
  const bool gathers = batch > 1 || params.weigh_input;
  if (gathers) pass.Embed(h, plan.token_of_slot(), columns);
  if (params.weigh_input) {
    plan.MoveWeightsToInputs();
    if (pass.runs()) pass.Check(backend.ScaleColumns(columns, plan.slot_weights()));
  }
  if (!pass.runs()) return;
  pass.Check(backend.LinearGroups(plan.GateAndUp(is_fused ? up.get() : gate.get(), *up,
                                                 gathers ? columns : h, gate_out, up_out)));
  ScaleSlots(pass, plan, gate_factors, gate_out);
  ScaleSlots(pass, plan, up_factors, up_out);
  AdaptGateAndUp(pass, plan, gathers ? columns : h, gate_out, up_out);
  AddBiases(pass, plan, gate_bias, biases, gate_out);
  AddBiases(pass, plan, up_bias, biases, up_out);
  Gate(pass, gate_out, up_out);
  if (!pass.runs()) return;
  const TensorView& inner = params.gated ? gate_out : up_out;
  pass.Check(backend.LinearGroups(plan.Down(*down, inner, columns)));
  const AdapterBank::Product product[] = {{{down.get(), columns, 0}, 1}};
  Adapt(pass, plan, inner, product);
  AddBiases(pass, plan, down_bias, biases, columns);
  if (!pass.runs()) return;
  pass.Check(backend.Combine(columns, plan.slots(), plan.Weights(batch), out));
}

}  // namespace kvcache
