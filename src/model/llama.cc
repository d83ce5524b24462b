#include "model/llama.h"

#include <algorithm>
#include <utility>

#include "kvcache/causal_cache.h"
#include "model/gguf.h"
#include "model/hyperparameters.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace kvcache {
namespace {

struct LlamaLayer {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  TensorView attn_norm, ffn_norm;  // [width]
  std::unique_ptr<LinearWeight> q, k, v, o;
  std::unique_ptr<LinearWeight> gate, up, down;
};

// Where each activation lies in the scratch, in values; B = max_batch. Attention's and the
// feed-forward's pieces are never alive together and share their bytes.
//
//   x [width, B] | h [width, B] | q k v att            (attention)
//                               | gate [ffn, B] up [ffn, B]  (feed-forward)
struct LlamaScratch {
  std::int64_t x, h, q, k, v, att, gate, up, total;
};

class Llama final : public Model {
 public:
  Llama(Backend& backend, LayerParams params) : backend_(backend), params_(std::move(params)) {}

  Status Load(const GgufFile& file);

  const ModelInfo& info() const override { return info_; }
  std::unique_ptr<Cache> MakeCache() override;
  Status Reserve(int max_batch) override;
  Status Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                 Cache& cache) override;
  Status Logits(std::span<const std::int32_t> rows, float* logits) override;
  std::size_t OwnedWeightBytes() const override { return owned_weight_bytes_; }

 private:
  Status LoadLayer(WeightReader& reader, int index);
  void FillInfo(const GgufFile& file);
  LlamaScratch Layout(std::int64_t max_batch) const;
  RopeParams Rope() const;
  Status AttentionBlock(const LlamaLayer& layer, std::span<const Position> positions, Cache& cache);
  Status FeedForwardBlock(const LlamaLayer& layer, std::int64_t batch);

  Backend& backend_;
  LayerParams params_;
  ModelInfo info_;
  TensorView embedding_;    // [width, vocabulary]
  TensorView output_norm_;  // [width]
  std::unique_ptr<LinearWeight> output_;
  std::vector<LlamaLayer> layers_;
  std::size_t owned_weight_bytes_ = 0;

  Scratch scratch_;
  LlamaScratch at_{};
  std::int64_t max_batch_ = 0;
  std::int64_t batch_ = 0;  // of the last Forward
};

Status Llama::Load(const GgufFile& file) {
  WeightReader reader(file, backend_);
  const std::int64_t width = params_.width;
  const std::int64_t vocabulary = params_.vocabulary;
  KVCACHE_ASSIGN_OR_RETURN(embedding_, reader.Table("token_embd.weight", width, vocabulary));
  KVCACHE_ASSIGN_OR_RETURN(output_norm_, reader.Vector("output_norm.weight", width));
  const char* output = reader.Has("output.weight") ? "output.weight" : "token_embd.weight";
  KVCACHE_ASSIGN_OR_RETURN(output_, reader.Matrix(output, width, vocabulary));
  for (int i = 0; i < params_.layers; ++i) KVCACHE_RETURN_IF_ERROR(LoadLayer(reader, i));
  KVCACHE_RETURN_IF_ERROR(reader.CheckAllUsed());
  owned_weight_bytes_ = reader.owned_bytes();
  FillInfo(file);
  return Status::Ok();
}

Status Llama::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const std::int64_t width = params_.width;
  LlamaLayer layer;
  layer.heads = params_.heads[static_cast<std::size_t>(index)];
  layer.kv_heads = params_.kv_heads[static_cast<std::size_t>(index)];
  const std::int64_t ffn = params_.ffn[static_cast<std::size_t>(index)];
  const std::int64_t q_width = layer.heads * params_.k_dim;
  const std::int64_t out_width = layer.heads * params_.v_dim;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, reader.Vector(prefix + "attn_norm.weight", width));
  KVCACHE_ASSIGN_OR_RETURN(layer.q, reader.Matrix(prefix + "attn_q.weight", width, q_width));
  KVCACHE_ASSIGN_OR_RETURN(
      layer.k, reader.Matrix(prefix + "attn_k.weight", width, layer.kv_heads * params_.k_dim));
  KVCACHE_ASSIGN_OR_RETURN(
      layer.v, reader.Matrix(prefix + "attn_v.weight", width, layer.kv_heads * params_.v_dim));
  KVCACHE_ASSIGN_OR_RETURN(layer.o, reader.Matrix(prefix + "attn_output.weight", out_width, width));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, reader.Vector(prefix + "ffn_norm.weight", width));
  KVCACHE_ASSIGN_OR_RETURN(layer.gate, reader.Matrix(prefix + "ffn_gate.weight", width, ffn));
  KVCACHE_ASSIGN_OR_RETURN(layer.up, reader.Matrix(prefix + "ffn_up.weight", width, ffn));
  KVCACHE_ASSIGN_OR_RETURN(layer.down, reader.Matrix(prefix + "ffn_down.weight", ffn, width));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Llama::FillInfo(const GgufFile& file) {
  info_ = {.architecture = "llama",
           .name = params_.name,
           .layers = params_.layers,
           .width = params_.width,
           .vocabulary = params_.vocabulary,
           .context_length = params_.context_length,
           .parameters = 0,
           .kv = {}};
  for (const GgufTensor& tensor : file.tensors()) info_.parameters += tensor.elements();
  for (const LlamaLayer& layer : layers_) {
    info_.kv.push_back({static_cast<int>(layer.kv_heads), params_.k_dim, params_.v_dim});
  }
}

RopeParams Llama::Rope() const {
  return {.pairing = RopeParams::Pairing::kInterleaved,
          .dims = params_.rope_dims,
          .inv_freq = params_.inv_freq};
}

std::unique_ptr<Cache> Llama::MakeCache() {
  return MakeCausalCache({.shift_keys = [this](int, const LayerKv& storage,
                                               std::span<const CellRun> cells, Position offset) {
    return backend_.ShiftKeys(storage, cells, offset, Rope());
  }});
}

LlamaScratch Llama::Layout(std::int64_t max_batch) const {
  std::int64_t heads = 0, kv_heads = 0, ffn = 0;
  for (int i = 0; i < params_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    heads = std::max<std::int64_t>(heads, params_.heads[at]);
    kv_heads = std::max<std::int64_t>(kv_heads, params_.kv_heads[at]);
    ffn = std::max<std::int64_t>(ffn, params_.ffn[at]);
  }
  LlamaScratch s{};
  s.x = 0;
  s.h = s.x + AlignedValues(params_.width * max_batch);
  s.q = s.h + AlignedValues(params_.width * max_batch);
  s.k = s.q + AlignedValues(heads * params_.k_dim * max_batch);
  s.v = s.k + AlignedValues(kv_heads * params_.k_dim * max_batch);
  s.att = s.v + AlignedValues(kv_heads * params_.v_dim * max_batch);
  const std::int64_t attention_end = s.att + AlignedValues(heads * params_.v_dim * max_batch);
  s.gate = s.q;
  s.up = s.gate + AlignedValues(ffn * max_batch);
  s.total = std::max(attention_end, s.up + AlignedValues(ffn * max_batch));
  return s;
}

Status Llama::Reserve(int max_batch) {
  if (max_batch <= max_batch_) return Status::Ok();
  const LlamaScratch layout = Layout(max_batch);
  KVCACHE_RETURN_IF_ERROR(scratch_.Reserve(backend_, layout.total));
  at_ = layout;
  max_batch_ = max_batch;
  batch_ = 0;
  return Status::Ok();
}

Status Llama::Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                      Cache& cache) {
  const auto batch = static_cast<std::int64_t>(tokens.size());
  if (batch == 0 || batch > max_batch_ || positions.size() != tokens.size()) {
    return {StatusCode::kInvalidArgument, "a pass of " + std::to_string(batch) +
                                              " tokens, reserved are " +
                                              std::to_string(max_batch_)};
  }
  batch_ = 0;
  const TensorView x = scratch_.At(at_.x, params_.width, batch);
  KVCACHE_RETURN_IF_ERROR(backend_.Embed(embedding_, tokens, x));
  for (int i = 0; i < params_.layers; ++i) {
    const LlamaLayer& layer = layers_[static_cast<std::size_t>(i)];
    cache.SetLayer(i);
    KVCACHE_RETURN_IF_ERROR(AttentionBlock(layer, positions, cache));
    KVCACHE_RETURN_IF_ERROR(FeedForwardBlock(layer, batch));
  }
  batch_ = batch;
  return Status::Ok();
}

// x += Wo · attention(rope(Wq h), rope(Wk h), Wv h), h = norm(x)
Status Llama::AttentionBlock(const LlamaLayer& layer, std::span<const Position> positions,
                             Cache& cache) {
  const auto batch = static_cast<std::int64_t>(positions.size());
  const TensorView x = scratch_.At(at_.x, params_.width, batch);
  const TensorView h = scratch_.At(at_.h, params_.width, batch);
  const TensorView q = scratch_.At(at_.q, params_.k_dim, layer.heads, batch);
  const TensorView k = scratch_.At(at_.k, params_.k_dim, layer.kv_heads, batch);
  const TensorView v = scratch_.At(at_.v, params_.v_dim, layer.kv_heads, batch);
  const TensorView att = scratch_.At(at_.att, params_.v_dim, layer.heads, batch);
  const auto rows = [batch](const TensorView& t) {
    return TensorView::Dense(t.data, DType::kF32, t.dims[0] * t.dims[1], batch);
  };

  KVCACHE_RETURN_IF_ERROR(backend_.RmsNorm(x, layer.attn_norm, params_.norm_epsilon, h));
  const LinearOutput projections[] = {
      {layer.q.get(), rows(q)}, {layer.k.get(), rows(k)}, {layer.v.get(), rows(v)}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(h, projections));
  KVCACHE_RETURN_IF_ERROR(backend_.Rope(q, positions, Rope()));
  KVCACHE_RETURN_IF_ERROR(backend_.Rope(k, positions, Rope()));
  KVCACHE_RETURN_IF_ERROR(cache.Put(k, v));
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, cache.Storage());
  KVCACHE_RETURN_IF_ERROR(backend_.Attention(storage, q, cache.Visible(),
                                             {.scale = params_.attention_scale, .sinks = {}}, att));
  const LinearOutput out[] = {{layer.o.get(), h}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(rows(att), out));
  return backend_.Add(x, h);
}

// x += Wdown (silu(Wgate h) × (Wup h)), h = norm(x)
Status Llama::FeedForwardBlock(const LlamaLayer& layer, std::int64_t batch) {
  const TensorView x = scratch_.At(at_.x, params_.width, batch);
  const TensorView h = scratch_.At(at_.h, params_.width, batch);
  const TensorView gate = scratch_.At(at_.gate, layer.gate->outputs(), batch);
  const TensorView up = scratch_.At(at_.up, layer.up->outputs(), batch);
  KVCACHE_RETURN_IF_ERROR(backend_.RmsNorm(x, layer.ffn_norm, params_.norm_epsilon, h));
  const LinearOutput both[] = {{layer.gate.get(), gate}, {layer.up.get(), up}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(h, both));
  KVCACHE_RETURN_IF_ERROR(backend_.SwiGlu(gate, up));
  const LinearOutput down[] = {{layer.down.get(), h}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(gate, down));
  return backend_.Add(x, h);
}

Status Llama::Logits(std::span<const std::int32_t> rows, float* logits) {
  const auto count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t row = rows[static_cast<std::size_t>(i)];
    if (row < 0 || row >= batch_) {
      return {StatusCode::kInvalidArgument, "logits of row " + std::to_string(row) +
                                                " of a pass of " + std::to_string(batch_) +
                                                " tokens"};
    }
    const TensorView from = scratch_.At(at_.x + row * params_.width, params_.width, 1);
    const TensorView to = scratch_.At(at_.h + i * params_.width, params_.width, 1);
    KVCACHE_RETURN_IF_ERROR(backend_.RmsNorm(from, output_norm_, params_.norm_epsilon, to));
  }
  const LinearOutput out[] = {
      {output_.get(), TensorView::Dense(logits, DType::kF32, params_.vocabulary, count)}};
  return backend_.Linear(scratch_.At(at_.h, params_.width, count), out);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLlama(const GgufFile& file, Backend& backend) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(file, "llama"));
  auto model = std::make_unique<Llama>(backend, std::move(params));
  KVCACHE_RETURN_IF_ERROR(model->Load(file));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace kvcache
