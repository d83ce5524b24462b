#include "model/families/gemma4_assistant.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kAssistant = "gemma4-assistant";

// Returns the error of a size that is not the model's.
Status OfAnotherModel(std::string_view what, std::int64_t own, std::int64_t models) {
  return Corrupt(
      StrCat("the draft head is for a model with ", own, " ", what, "; this one has ", models));
}

Status CheckIsAssistant(const GgufFile& file) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                           file.GetString("general.architecture"));
  if (architecture == kAssistant) return Status::Ok();
  return NotFound(StrCat("the file has no draft head for gemma4: its architecture is ",
                         Quoted(architecture), ", that of such heads is ", Quoted(kAssistant)));
}

}  // namespace

// ---- Loading

Result<std::unique_ptr<Gemma4Assistant>> Gemma4Assistant::Load(const GgufFile& file,
                                                               Backend& backend,
                                                               const AssistantTarget& target) {
  KVCACHE_RETURN_IF_ERROR(CheckIsAssistant(file));
  std::unique_ptr<Gemma4Assistant> head(new Gemma4Assistant(backend, target));
  KeyReader keys(file, kAssistant);
  WeightReader weights(file, backend);
  KVCACHE_RETURN_IF_ERROR(weights.EnterLayer(target.layers));
  KVCACHE_RETURN_IF_ERROR(head->ReadKeys(keys, weights));
  KVCACHE_RETURN_IF_ERROR(head->CheckTarget(keys));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  KVCACHE_RETURN_IF_ERROR(head->LoadTensors(weights));
  head->placed_ = weights.TakePlaced();
  head->owned_weight_bytes_ = weights.owned_bytes() + head->placed_.bytes();
  return head;
}

Status Gemma4Assistant::ReadKeys(KeyReader& keys, WeightReader& weights) {
  KVCACHE_ASSIGN_OR_RETURN(params_, ReadLayerParams(keys, LayerKinds::kDraftHead));
  if (!keys.Has("attention.scale")) params_.attention_scale = 1.0f;
  KVCACHE_ASSIGN_OR_RETURN(kinds_, Gemma4Kinds::Read(keys, params_, weights));
  // Files say that all layers share keys and values; the head has no others. A cap on logits does not
  // change their order.
  keys.Ignore("attention.shared_kv_layers");
  keys.Ignore("final_logit_softcapping");
  return Status::Ok();
}

Status Gemma4Assistant::CheckTarget(KeyReader& keys) const {
  KVCACHE_ASSIGN_OR_RETURN(const int hidden_size, keys.Int("embedding_length_out", 1 << 20));
  if (hidden_size != target_.hidden_size) {
    return OfAnotherModel("values per token", hidden_size, target_.hidden_size);
  }
  if (params_.vocabulary != target_.vocabulary) {
    return OfAnotherModel("tokens in the vocabulary", params_.vocabulary, target_.vocabulary);
  }
  for (int layer = 0; layer < params_.layers; ++layer) {
    const AssistantTarget::Source& source = SourceOf(layer);
    const bool windowed = kinds_.IsWindowed(layer);
    const std::string of = windowed ? " of layers with a window" : " of layers without a window";
    if (source.layer < 0) {
      return Corrupt(StrCat("layer ", layer, " of the draft head reads keys and values", of,
                            "; the model has no such layer"));
    }
    const int window = kinds_.spans[static_cast<std::size_t>(layer)].window;
    if (window != source.window) {
      return OfAnotherModel("tokens in a window", window, source.window);
    }
    if (kinds_.HeadDim(layer) != source.dim) {
      return OfAnotherModel("values in a head" + of, kinds_.HeadDim(layer), source.dim);
    }
    const int kv_heads = params_.kv_heads[static_cast<std::size_t>(layer)];
    if (kv_heads != source.kv_heads)
      return OfAnotherModel("KV heads" + of, kv_heads, source.kv_heads);
  }
  return Status::Ok();
}

Status Gemma4Assistant::LoadTensors(WeightReader& weights) {
  const std::int64_t size = params_.hidden_size;
  const std::int64_t state = target_.hidden_size;
  KVCACHE_ASSIGN_OR_RETURN(pre_, weights.Linear("nextn.pre_projection", 2 * state, size));
  KVCACHE_ASSIGN_OR_RETURN(post_, weights.Linear("nextn.post_projection", size, state));
  KVCACHE_ASSIGN_OR_RETURN(output_norm_,
                           weights.RmsNorm("output_norm", size, params_.norm_epsilon));
  // The head's own embedding is its output matrix: it reads the model's.
  const bool tied = !weights.Has("output.weight");
  if (!tied) weights.Ignore("token_embd.weight");
  KVCACHE_ASSIGN_OR_RETURN(
      output_, weights.Linear(tied ? "token_embd" : "output", size, params_.vocabulary));
  for (int layer = 0; layer < params_.layers; ++layer) {
    KVCACHE_ASSIGN_OR_RETURN(Gemma4Layer loaded,
                             Gemma4Layer::Load(weights, params_, {}, layer, kinds_.HeadDim(layer)));
    layers_.push_back(std::move(loaded));
  }
  weights.IgnoreAll("masked_embd_");
  return weights.CheckAllUsed();
}

// ---- Drafting

Status Gemma4Assistant::Reserve(int max) {
  Pass measure = Pass::Measuring(max);
  (void)Run(measure, {}, nullptr);
  KVCACHE_RETURN_IF_ERROR(measure.status());
  return activations_.Reserve(backend_, measure.peak_values());
}

Status Gemma4Assistant::Begin(Cache& cache, std::span<const SequenceLength> rows) {
  rows_ = 0;
  if (target_.full.layer >= 0) {
    cache.SetLayer(target_.full.layer);
    KVCACHE_RETURN_IF_ERROR(full_.Set(cache, rows, 0));
  }
  if (target_.windowed.layer >= 0) {
    cache.SetLayer(target_.windowed.layer);
    KVCACHE_RETURN_IF_ERROR(windowed_.Set(cache, rows, target_.windowed.window));
  }
  rows_ = rows.size();
  return Status::Ok();
}

void Gemma4Assistant::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Gemma4Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params_.hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  {
    const Pass::Scope heads(pass);
    const TensorView q = pass.TakeHeads(layer.dim, layer.heads);
    const TensorView att = pass.TakeHeads(layer.dim, layer.heads);
    layer.Queries(pass, h, kinds_.Rope(index), q);
    const SequenceViews& seen = kinds_.IsWindowed(index) ? windowed_ : full_;
    pass.AttendView(SourceOf(index).layer, seen.Visible(), q, {.scale = params_.attention_scale},
                    att);
    pass.Linear(att, {{layer.o, h}});
  }
  layer.AddAttended(pass, plan_, h, x);
  if (layer.scale != 1.0f) pass.Scale(x, layer.scale);
}

Gemma4Assistant::Results Gemma4Assistant::Run(Pass& pass, std::span<const std::int32_t> tokens,
                                              const float* states) {
  const std::int64_t size = target_.hidden_size;
  const Results results{.normed = pass.TakeHidden(params_.hidden_size),
                        .next = pass.TakeHidden(size)};
  const Pass::Scope scope(pass);
  const TensorView x = pass.TakeHidden(params_.hidden_size);
  {
    const Pass::Scope inputs(pass);
    const TensorView both = pass.TakeHidden(2 * size);
    const TensorView given = pass.TakeHidden(size);
    pass.EnterLayer(Backend::kBeforeLayers);
    pass.Embed(target_.embedding, tokens, results.next);
    pass.Scale(results.next, target_.embedding_scale);
    pass.Copy(results.next, Slice(both, 0, size));
    pass.CopyFromHost(states, given);
    pass.Copy(given, Slice(both, size, size));
    pass.EnterLayer(target_.layers);
    pass.Linear(both, {{pre_, x}});
  }
  for (int layer = 0; layer < params_.layers; ++layer) RunLayer(pass, layer, x);
  pass.RmsNorm(x, output_norm_, results.normed);
  pass.Linear(results.normed, {{post_, results.next}});
  return results;
}

Status Gemma4Assistant::Draft(const Inputs& inputs, Cache& cache,
                              const std::atomic<bool>* interrupt) {
  const auto batch = static_cast<std::int64_t>(inputs.tokens.size());
  if (inputs.tokens.size() != rows_) {
    return InvalidArgument(
        StrCat("drafts have ", batch, " rows; must be the ", rows_, " that began"));
  }
  Pass pass(backend_, activations_, &cache, inputs.positions, interrupt);
  const Results results = Run(pass, inputs.tokens, inputs.states);
  KVCACHE_RETURN_IF_ERROR(pass.status());
  KVCACHE_RETURN_IF_ERROR(backend_.CopyToHost(
      results.next, std::as_writable_bytes(std::span(
                        inputs.next_states, static_cast<std::size_t>(results.next.elements())))));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView logits,
                           host_logits_.Out(backend_, inputs.logits, params_.vocabulary, batch));
  const LinearOutput out[] = {{output_.weight.get(), logits}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(results.normed, out));
  if (output_.scale != 1.0f) KVCACHE_RETURN_IF_ERROR(backend_.Scale(logits, output_.scale));
  return HostValues::Deliver(backend_, logits, inputs.logits);
}

}  // namespace kvcache
