#include "model/graph/decoder.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/fnv.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "model/load/model_digest.h"

namespace kvcache {

Status Decoder::Load(WeightReader& reader, const GgufFile& file) {
  const std::int64_t hidden_size = params_.hidden_size;
  const std::int64_t vocabulary = params_.vocabulary;
  const std::int64_t rows = std::max(params_.embedding_rows, params_.vocabulary);
  KVCACHE_RETURN_IF_ERROR(reader.EnterLayer(Backend::kBeforeLayers));
  KVCACHE_ASSIGN_OR_RETURN(embedding_, reader.Table("token_embd.weight", hidden_size, rows));
  KVCACHE_RETURN_IF_ERROR(LoadModelTensors(reader));
  KVCACHE_RETURN_IF_ERROR(reader.EnterLayer(params_.layers));
  if (!params_.output_norm_name.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(output_norm_, reader.RmsNorm(std::string(params_.output_norm_name),
                                                          hidden_size, params_.norm_epsilon));
    output_norm_.kind = params_.norm_kind;
  }
  // Files with tied output lack output.weight: the embedding is the output matrix.
  const char* const output = reader.Has("output.weight") ? "output" : "token_embd";
  if (!params_.is_encoder) {
    KVCACHE_ASSIGN_OR_RETURN(output_, reader.Linear(output, hidden_size, vocabulary));
  }
  KVCACHE_RETURN_IF_ERROR(texts_.Load(reader));
  for (int i = 0; i < params_.layers; ++i) {
    KVCACHE_RETURN_IF_ERROR(reader.EnterLayer(i));
    KVCACHE_RETURN_IF_ERROR(LoadLayer(reader, i));
  }
  for (int i = 0; i < params_.nextn_layers; ++i) {
    reader.IgnoreAll(LayerPrefix(params_.layers + i));  // LoadHead takes one if it is wanted
    reader.Ignore(DraftHead::kTokens);
  }
  KVCACHE_RETURN_IF_ERROR(reader.CheckAllUsed());
  placed_ = reader.TakePlaced();
  owned_weight_bytes_ = reader.owned_bytes() + placed_.bytes();
  adapters_.SetSites(reader.TakeSites());
  digest_ = ModelDigest(file);
  FillInfo(file);
  return Status::Ok();
}

void Decoder::FillInfo(const GgufFile& file) {
  info_ = {.architecture = std::string(architecture_),
           .name = params_.name,
           .layers = params_.layers,
           .hidden_size = params_.hidden_size,
           .vocabulary = params_.vocabulary,
           .embedding_rows = std::max(params_.embedding_rows, params_.vocabulary),
           .context_length = params_.context_length,
           .parameters = 0,
           .decoder_start = params_.decoder_start,
           .three_axes = !params_.rope_axes.empty(),
           .is_encoder = params_.is_encoder,
           .memory = Memory()};
  for (const GgufTensor& tensor : file.tensors()) info_.parameters += tensor.elements();
}

std::vector<LayerMemory> Decoder::Memory() const {
  using Kind = LayerMemory::Kind;
  std::vector<LayerMemory> layers;
  if (params_.is_encoder) return layers;  // its keys and values live as long as a pass
  for (int i = 0; i < params_.layers; ++i) {
    const AttentionSpan seen = attention_span(i);
    layers.push_back({.layer = i,
                      .kind = seen.window > 0  ? Kind::kSliding
                              : seen.chunk > 0 ? Kind::kChunked
                                               : Kind::kFull,
                      .kv = {params_.kv_heads[static_cast<std::size_t>(i)], params_.k_dim,
                             params_.v_dim, params_.v_in_k},
                      .window = seen.window,
                      .retained_tokens = TwiceTheWindow(seen.window),
                      .chunk = seen.chunk});
  }
  return layers;
}

ShiftKeysFn Decoder::ShiftKeys() {
  if (!can_shift_keys()) return {};
  return
      [this](int layer, const LayerKv& storage, std::span<const CellRun> cells, Position offset) {
        return backend_.ShiftKeys(storage, cells, offset, rope(layer));
      };
}

std::string Decoder::KeysIdentity() const {
  Fnv1a ropes;
  for (int i = 0; i < params_.layers; ++i) {
    const RopeParams params = rope(i);
    ropes.AddValue(params.pairing);
    ropes.AddValue(params.dims);
    ropes.AddValue(params.first);
    ropes.AddValue(params.magnitude);
    ropes.Add(std::as_bytes(params.inv_freq));
  }
  return StrCat(architecture_, " ", HexText(digest_), ", RoPE ", HexText(ropes.sum()));
}

std::unique_ptr<Cache> Decoder::MakeCache() {
  std::vector<AttentionSpan> spans;
  spans.reserve(static_cast<std::size_t>(params_.layers));
  for (int i = 0; i < params_.layers; ++i) spans.push_back(attention_span(i));
  return WithHeadCache(MakeLayerCaches(spans, ShiftKeys(), KeysIdentity()));
}

Status Decoder::AddAdapter(const AdapterFile& file) {
  if (!can_have_adapters()) {
    return Unsupported(
        StrCat("architecture ", architecture_, " takes no adapters: it has an encoder's output"));
  }
  return adapters_.Add(file,
                       {.architecture = architecture_,
                        .hidden_size = params_.hidden_size,
                        .embedding_rows = std::max(params_.embedding_rows, params_.vocabulary)},
                       backend_);
}

void Decoder::RunLayers(Pass& pass, std::span<const std::int32_t>, const TensorView& x) {
  for (int i = 0; i < params_.layers; ++i) {
    pass.EnterLayer(i);
    RunLayer(pass, i, x);
  }
}

Status Decoder::Reserve(int max_batch) {
  if (max_batch <= max_batch_) return Status::Ok();
  Pass measure = Pass::Measuring(max_batch);
  const TensorView x = measure.TakeHidden(params_.hidden_size);
  {
    const Pass::Scope scope(measure);
    // Logits puts its normed rows behind the hidden states, where layers had their activations.
    measure.TakeHidden(params_.hidden_size);
  }
  TensorView finals;
  if (has_head()) {
    measure.TakeHidden(params_.hidden_size);
    finals = measure.TakeHidden(params_.hidden_size);
  }
  RunLayers(measure, {}, x);
  if (head_) {
    PutHead(measure, {}, finals);
    Pass draft = Pass::Measuring(kMaxDraftRows);
    RunDraft(draft, {}, nullptr);
    KVCACHE_RETURN_IF_ERROR(draft_activations_.Reserve(backend_, draft.peak_values()));
  }
  KVCACHE_RETURN_IF_ERROR(measure.status());
  // If the allocation fails, the old buffer is gone: no pass may run until a later Reserve
  // succeeds.
  max_batch_ = 0;
  batch_ = 0;
  KVCACHE_RETURN_IF_ERROR(activations_.Reserve(backend_, measure.peak_values()));
  KVCACHE_RETURN_IF_ERROR(adapters_.Reserve(backend_, max_batch));
  max_batch_ = max_batch;
  return Status::Ok();
}

Status Decoder::Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                        Cache& cache) {
  const auto batch = static_cast<std::int64_t>(tokens.size());
  if (batch == 0 || batch > max_batch_ || positions.size() != tokens.size()) {
    return InvalidArgument(StrCat("batch has ", batch, " tokens and ", positions.size(),
                                  " positions; both must be 1 to ", max_batch_, ", as reserved"));
  }
  // A failed pass leaves no hidden states for Logits.
  batch_ = 0;
  tokens = EmbeddedTokens(tokens);
  Pass pass(backend_, activations_, &cache, positions, interrupt());
  pass.UseAxes({.positions = std::exchange(axes_, {}), .of_pair = params_.rope_axes});
  const TensorView x = pass.TakeHidden(params_.hidden_size);
  TensorView finals;
  if (has_head()) {
    pass.TakeHidden(params_.hidden_size);
    finals = pass.TakeHidden(params_.hidden_size);
  }
  EmbedAdapted(pass, tokens, x);
  CopyInputRows(pass, x);
  RunLayers(pass, tokens, x);
  pass.EnterLayer(params_.layers);
  if (has_head()) pass.Normalize(x, output_norm_, finals);
  if (head_) {
    PutHead(pass, tokens, finals);
    previous_ = {};
  }
  KVCACHE_RETURN_IF_ERROR(pass.status());
  batch_ = batch;
  return Status::Ok();
}

Status Decoder::CheckRows(std::span<const std::int32_t> rows) const {
  if (static_cast<std::int64_t>(rows.size()) > max_batch_) {
    return InvalidArgument(StrCat("logits of ", rows.size(), " rows are wanted; at most ",
                                  max_batch_, " are reserved"));
  }
  for (const std::int32_t row : rows) {
    if (row >= 0 && row < batch_) continue;
    return InvalidArgument(StrCat("logits row is ", row, "; must be from 0 to below the ", batch_,
                                  " tokens of the last pass"));
  }
  return Status::Ok();
}

Status Decoder::NormalizeRows(std::int64_t first, const TensorView& y) const {
  TensorView x = activations_.At(first * params_.hidden_size, params_.hidden_size, y.dims[1]);
  if (params_.output_norm_name.empty()) return backend_.CopyValues(x, y);
  if (output_norm_.kind == NormKind::kLayer) {
    KVCACHE_RETURN_IF_ERROR(backend_.Center(x, y));
    x = y;
  }
  return backend_.RmsNorm(x, output_norm_.weight, output_norm_.epsilon, y);
}

Status Decoder::Logits(std::span<const std::int32_t> rows, float* logits) {
  KVCACHE_RETURN_IF_ERROR(CheckRows(rows));
  const auto count = static_cast<std::int64_t>(rows.size());
  if (count == 0) return Status::Ok();
  if (params_.is_encoder) {
    return Unsupported(
        StrCat("architecture ", architecture_, " is an encoder, which has no logits"));
  }
  KVCACHE_RETURN_IF_ERROR(backend_.EnterLayer(params_.layers, TensorView{}));
  const std::int64_t hidden_size = params_.hidden_size;
  const std::int64_t normed = AlignedValues(hidden_size * batch_);
  for (std::size_t i = 0; i < rows.size();) {
    // Neighbouring rows in one call.
    std::size_t end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    KVCACHE_RETURN_IF_ERROR(
        NormalizeRows(rows[i], activations_.At(normed + static_cast<std::int64_t>(i) * hidden_size,
                                               hidden_size, static_cast<std::int64_t>(end - i))));
    i = end;
  }
  KVCACHE_ASSIGN_OR_RETURN(const TensorView y,
                           host_logits_.Out(backend_, logits, params_.vocabulary, count));
  const LinearOutput out[] = {{output_.weight.get(), y}};
  const TensorView x = activations_.At(normed, hidden_size, count);
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(x, out));
  if (output_.scale != 1.0f) KVCACHE_RETURN_IF_ERROR(backend_.Scale(y, output_.scale));
  if (adapters_.is_used()) {
    KVCACHE_RETURN_IF_ERROR(adapters_.ApplyRows(backend_, x, rows, {.output = out[0]}));
  }
  return FinishLogits(y, logits);
}

Status Decoder::FinishLogits(const TensorView& y, float* logits) const {
  if (params_.logit_scale != 1.0f) {
    KVCACHE_RETURN_IF_ERROR(backend_.Scale(y, params_.logit_scale));
  }
  if (params_.logit_soft_cap > 0.0f) {
    KVCACHE_RETURN_IF_ERROR(backend_.SoftCap(y, params_.logit_soft_cap));
  }
  return HostValues::Deliver(backend_, y, logits);
}

void Decoder::EmbedTokens(Pass& pass, const TensorView& table, std::span<const std::int32_t> tokens,
                          const TensorView& x) const {
  pass.Embed(table, tokens, x);
  ScaleEmbedding(pass, x);
}

void Decoder::ScaleEmbedding(Pass& pass, const TensorView& x) const {
  if (params_.embedding_scale != 1.0f) pass.Scale(x, params_.embedding_scale);
}

void Decoder::EmbedAdapted(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  adapters_.Begin(std::exchange(of_token_, {}));
  if (adapters_.is_used()) pass.UseAdapters(&adapters_);
  pass.BeginAt(Backend::kBeforeLayers);
  pass.Embed(embedding_, tokens, x);
  pass.AdaptEmbedding(tokens, x);
  ScaleEmbedding(pass, x);
}

std::span<const std::int32_t> Decoder::EmbeddedTokens(std::span<const std::int32_t> tokens) {
  if (input_rows_.empty()) return tokens;
  embedded_tokens_.assign(tokens.begin(), tokens.end());
  for (const InputRows& rows : input_rows_) {
    std::fill_n(embedded_tokens_.begin() + rows.index, rows.count, 0);
  }
  return embedded_tokens_;
}

void Decoder::CopyInputRows(Pass& pass, const TensorView& x) {
  for (const InputRows& rows : std::exchange(input_rows_, {})) {
    TensorView columns = WithOffset(x, rows.index * x.stride_bytes[1]);
    columns.dims[1] = rows.count;
    pass.CopyFromHost(rows.values, columns);
  }
}

Status Decoder::Encode(std::span<const std::int32_t>, SequenceId, Cache&) {
  return Unsupported(StrCat("architecture ", architecture_, " has no encoder"));
}

Status Decoder::EncodeStates(const TensorView&, SequenceId, Cache&) {
  return Unsupported(StrCat("architecture ", architecture_, " takes no images"));
}

}  // namespace kvcache
