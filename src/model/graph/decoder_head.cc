// The part of a decoder that runs its draft head.
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/fnv.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "kvcache/causal_cache.h"
#include "kvcache/wrapper_cache.h"
#include "model/graph/decoder.h"
#include "model/load/model_digest.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMaxFfn = 1 << 23;

// Returns columns [first, first + count) of x [size, batch].
TensorView Columns(const TensorView& x, std::int64_t first, std::int64_t count) {
  TensorView view = WithOffset(x, first * x.stride_bytes[1]);
  view.dims[1] = count;
  return view;
}

}  // namespace

bool HasOnlyDraftHead(const GgufFile& file) {
  const auto architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return false;
  if (*architecture == "gemma4-assistant") return true;
  if (file.FindTensor("token_embd.weight") != nullptr) return false;
  const auto heads = file.GetIntOr(StrCat(*architecture, ".nextn_predict_layers"), 0);
  return heads.ok() && *heads > 0;
}

Status Decoder::CheckHeadFile(const GgufFile& file) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                           file.GetString("general.architecture"));
  if (architecture != architecture_) {
    return InvalidArgument(StrCat("the draft head is for ", Quoted(architecture), ", the model is ",
                                  Quoted(architecture_)));
  }
  const auto key = [&](std::string_view name) { return StrCat(architecture_, ".", name); };
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t heads, file.GetIntOr(key("nextn_predict_layers"), 0));
  if (heads < 1) {
    return NotFound(
        StrCat("the file has no draft head: ", key("nextn_predict_layers"), " is 0 or missing"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t blocks, file.GetInt(key("block_count")));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t size, file.GetInt(key("embedding_length")));
  if (blocks - heads == params_.layers && size == params_.hidden_size) return Status::Ok();
  return Corrupt(StrCat("the draft head is for a model with ", blocks - heads, " layers and ", size,
                        " values per token; this one has ", params_.layers, " and ",
                        params_.hidden_size));
}

Status Decoder::LoadHead(const GgufFile& file) {
  if (!can_have_head()) {
    return Unsupported(
        StrCat("models of architecture ", architecture_, " have no draft heads here"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckHeadFile(file));
  const int layer = params_.layers;
  // The head's layer is like the last one with attention.
  std::size_t like = params_.kv_heads.size();
  while (like > 0 && params_.kv_heads[like - 1] == 0) --like;
  if (like == 0) return Corrupt("a draft head needs a model with attention");
  for (std::vector<int>* sizes : {&params_.heads, &params_.kv_heads, &params_.ffn}) {
    sizes->push_back((*sizes)[like - 1]);
  }
  const std::string ffn_key = StrCat(architecture_, ".feed_forward_length");
  if (HasOnlyDraftHead(file) && file.Find(ffn_key) != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t ffn, file.GetInt(ffn_key));
    if (ffn < 1 || ffn > kMaxFfn) {
      return Corrupt(StrCat(ffn_key, " is ", ffn, "; must be 1 to ", kMaxFfn));
    }
    params_.ffn.back() = static_cast<int>(ffn);
  }
  WeightReader reader(file, backend_);
  KVCACHE_RETURN_IF_ERROR(reader.EnterLayer(layer));
  KVCACHE_ASSIGN_OR_RETURN(head_, DraftHead::Load(reader, params_, layer));
  KVCACHE_RETURN_IF_ERROR(LoadLayer(reader, layer));
  KVCACHE_RETURN_IF_ERROR(reader.CheckAllUsed(LayerPrefix(layer)));
  PlacedTensors placed = reader.TakePlaced();
  owned_weight_bytes_ += reader.owned_bytes() + placed.bytes();
  placed_.Add(std::move(placed));
  head_digest_ = ModelDigest(file);
  zeros_.assign(static_cast<std::size_t>(params_.hidden_size), 0.0f);
  info_.memory.push_back(
      {.layer = layer,
       .kind = LayerMemory::Kind::kFull,
       .kv = {params_.kv_heads.back(), params_.k_dim, params_.v_dim, params_.v_in_k}});
  return Status::Ok();
}

std::unique_ptr<Cache> Decoder::WithHeadCache(std::unique_ptr<Cache> cache) {
  if (!head_) return cache;
  WrapperOptions options;
  options.caches.push_back(std::move(cache));
  options.caches.push_back(MakeCausalCache(
      {.shift_keys = ShiftKeys(),
       .keys_identity = StrCat(KeysIdentity(), ", draft head ", HexText(head_digest_))}));
  options.cache_of_layer.assign(static_cast<std::size_t>(params_.layers), 0);
  options.cache_of_layer.push_back(1);
  return MakeWrapperCache(std::move(options));
}

// A run of tokens that follow each other in the batch is copied at once.
void Decoder::CopyPrevious(Pass& pass, const TensorView& finals, const TensorView& previous) const {
  if (!pass.runs()) return;
  const std::int64_t size = params_.hidden_size;
  const std::span<const std::int32_t> of = previous_.of_token;
  for (std::int64_t i = 0; i < pass.batch();) {
    const std::int32_t from =
        of.empty() ? PreviousStates::kUnknown : of[static_cast<std::size_t>(i)];
    std::int64_t count = 1;
    if (from < 0) {
      const float* const state = from == PreviousStates::kUnknown
                                     ? zeros_.data()
                                     : previous_.known + (-2 - std::int64_t{from}) * size;
      pass.CopyFromHost(state, Columns(previous, i, 1));
    } else {
      while (i + count < pass.batch() && of[static_cast<std::size_t>(i + count)] == from + count) {
        ++count;
      }
      pass.Copy(Columns(finals, from, count), Columns(previous, i, count));
    }
    i += count;
  }
}

// The model's embedding is before its layers, the head behind them.
void Decoder::EmbedForHead(Pass& pass, std::span<const std::int32_t> tokens,
                           const TensorView& embedded) const {
  if (!head_->embedding) pass.EnterLayer(Backend::kBeforeLayers);
  EmbedTokens(pass, head_->embedding.value_or(embedding_), tokens, embedded);
  pass.EnterLayer(params_.layers);
}

void Decoder::PutHead(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& finals) {
  const std::int64_t size = params_.hidden_size;
  const Pass::Scope scope(pass);
  const TensorView x = pass.TakeHidden(size);
  const TensorView embedded = pass.TakeHidden(size);
  const TensorView previous = pass.TakeHidden(size);
  EmbedForHead(pass, tokens, embedded);
  CopyPrevious(pass, finals, previous);
  head_->Join(pass, embedded, previous, x);
  pass.EndAfterPut();
  RunLayer(pass, params_.layers, x);
}

Status Decoder::BeginDrafts(Cache&, std::span<const SequenceLength>) {
  return Unsupported("the model has no draft head that reads its cache");
}

Status Decoder::FinalStates(std::span<const std::int32_t> rows, float* states) {
  KVCACHE_RETURN_IF_ERROR(CheckRows(rows));
  KVCACHE_RETURN_IF_ERROR(backend_.EnterLayer(params_.layers, TensorView{}));
  const std::int64_t size = params_.hidden_size;
  const std::int64_t finals = 2 * AlignedValues(size * batch_);
  KVCACHE_ASSIGN_OR_RETURN(const TensorView all,
                           host_states_.Out(backend_, states, size, std::ssize(rows)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TensorView to = Columns(all, static_cast<std::int64_t>(i), 1);
    KVCACHE_RETURN_IF_ERROR(
        has_head() ? backend_.CopyValues(activations_.At(finals + rows[i] * size, size, 1), to)
                   : NormalizeRows(rows[i], to));
  }
  return HostValues::Deliver(backend_, all, states);
}

TensorView Decoder::RunDraft(Pass& pass, std::span<const std::int32_t> tokens,
                             const float* states) {
  const std::int64_t size = params_.hidden_size;
  const TensorView normed = pass.TakeHidden(size);
  const Pass::Scope scope(pass);
  const TensorView x = pass.TakeHidden(size);
  const TensorView embedded = pass.TakeHidden(size);
  const TensorView previous = pass.TakeHidden(size);
  EmbedForHead(pass, tokens, embedded);
  pass.CopyFromHost(states, previous);
  head_->Join(pass, embedded, previous, x);
  RunLayer(pass, params_.layers, x);
  pass.Normalize(x, head_->norm.value_or(output_norm_), normed);
  return normed;
}

Status Decoder::CheckDrafts(std::span<const std::int32_t> tokens,
                            std::span<const Position> positions) {
  const std::size_t batch = tokens.size();
  if (batch >= 1 && batch <= kMaxDraftRows && positions.size() == batch) return Status::Ok();
  return InvalidArgument(StrCat("drafts have ", batch, " tokens and ", positions.size(),
                                " positions; both must be 1 to ", kMaxDraftRows));
}

Status Decoder::Draft(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                      const float* states, Cache& cache, float* logits, float* next_states) {
  KVCACHE_RETURN_IF_ERROR(CheckDrafts(tokens, positions));
  const auto batch = static_cast<std::int64_t>(tokens.size());
  Pass pass(backend_, draft_activations_, &cache, positions, interrupt());
  const TensorView state = RunDraft(pass, tokens, states);
  KVCACHE_RETURN_IF_ERROR(pass.status());
  KVCACHE_RETURN_IF_ERROR(backend_.CopyToHost(
      state,
      std::as_writable_bytes(std::span(next_states, static_cast<std::size_t>(state.elements())))));
  const LinearWeight& output = *(head_->output ? *head_->output : output_).weight;
  KVCACHE_ASSIGN_OR_RETURN(const TensorView y,
                           host_logits_.Out(backend_, logits, output.outputs(), batch));
  const LinearOutput out[] = {{&output, y}};
  KVCACHE_RETURN_IF_ERROR(backend_.Linear(state, out));
  return FinishLogits(y, logits);
}

}  // namespace kvcache
