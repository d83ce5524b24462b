#include "model/graph/pass.h"

#include <array>
#include <cassert>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/wrapper_cache.h"
#include "model/adapter/adapter_bank.h"
#include "model/graph/draft_replay.h"

namespace kvcache {
namespace {

// Returns heads as columns [values, batch], the form that a linear layer reads and writes.
TensorView ColumnsOf(const TensorView& view, std::int64_t batch) {
  return TensorView::Dense(view.data, DType::kF32, view.elements() / batch, batch);
}

// Returns all rows of a view as one matrix, or nothing if the rows are not evenly spaced.
std::optional<TensorView> RowsOf(const TensorView& view) {
  TensorView rows = TensorView::Dense(view.data, DType::kF32, view.dims[0],
                                      view.dims[1] * view.dims[2] * view.dims[3]);
  const auto [s0, s1, s2, s3] = view.stride_bytes;
  rows.stride_bytes[1] = view.dims[1] == 1 ? s2 : s1;
  const bool even = view.dims[1] == 1 || view.dims[2] == 1 || s2 == view.dims[1] * s1;
  return even && view.dims[3] == 1 ? std::optional(rows) : std::nullopt;
}

}  // namespace

TensorView Pass::HeadsOf(const TensorView& x, std::int64_t offset, std::int64_t dim,
                         std::int64_t heads) const {
  TensorView view = TensorView::Dense(x.data, DType::kF32, dim, heads, batch_);
  view.stride_bytes[2] = BytesOf(DType::kF32, x.elements() / batch_);
  return WithOffset(view, BytesOf(DType::kF32, offset));
}

TensorView Pass::StridedHeads(const TensorView& x, std::int64_t first) {
  TensorView view = x;
  view.dims[1] /= 2;
  view.stride_bytes[1] *= 2;
  return WithOffset(view, first * x.stride_bytes[1]);
}

TensorView Pass::Take(std::int64_t d0, std::int64_t d1, std::int64_t d2) {
  const std::int64_t at = top_;
  top_ += AlignedValues(d0 * d1 * d2);
  peak_ = std::max(peak_, top_);
  if (!measuring() && top_ > activations_->values()) {
    Check({StatusCode::kInternal,
           StrCat("the pass takes ", top_, " activation values; the buffer has ",
                  activations_->values(), ", as measured")});
    return TensorView::Dense(nullptr, DType::kF32, d0, d1, d2);
  }
  return measuring() ? TensorView::Dense(nullptr, DType::kF32, d0, d1, d2)
                     : activations_->At(at, d0, d1, d2);
}

void Pass::EnterLayer(int layer) {
  if (runs()) Check(backend_->EnterLayer(layer, activations_->At(0, top_, 1)));
}

void Pass::BeginAt(int layer) {
  if (runs()) Check(backend_->EnterLayer(layer, TensorView{}));
}

void Pass::Linear(const TensorView& x, std::initializer_list<Product> products) {
  constexpr std::size_t kMax = 4;
  assert(products.size() <= kMax);
  if (!runs()) return;
  std::array<LinearOutput, kMax> outputs;
  std::size_t count = 0;
  for (const Product& product : products) {
    outputs[count++] = {product.by.weight.get(), ColumnsOf(product.to, batch_)};
  }
  Check(backend_->Linear(ColumnsOf(x, batch_), std::span(outputs).first(count)));
  for (const Product& product : products) {
    if (product.by.scale != 1.0f) Scale(ColumnsOf(product.to, batch_), product.by.scale);
    if (!product.by.bias.has_value() || !runs()) continue;
    Check(backend_->AddBias(ColumnsOf(product.to, batch_), *product.by.bias));
  }
  if (adapters_ == nullptr || !runs()) return;
  std::array<AdapterBank::Product, kMax> adapted;
  for (std::size_t i = 0; i < count; ++i) adapted[i].output = outputs[i];
  Check(adapters_->Apply(*backend_, ColumnsOf(x, batch_), std::span(adapted).first(count)));
}

void Pass::RmsNorm(const TensorView& x, const Norm& norm, const TensorView& y) {
  if (!runs()) return;
  const std::optional<TensorView> from = RowsOf(x);
  const std::optional<TensorView> to = RowsOf(y);
  if (!from.has_value() || !to.has_value()) {
    return Check({StatusCode::kInternal, "RmsNorm needs rows that are evenly spaced"});
  }
  Check(backend_->RmsNorm(*from, norm.weight, norm.epsilon, *to));
}

void Pass::Normalize(const TensorView& x, const Norm& norm, const TensorView& y) {
  if (norm.kind == NormKind::kRms) return RmsNorm(x, norm, y);
  if (runs()) Check(backend_->Center(x, y));
  RmsNorm(y, norm, y);
  if (norm.bias.has_value() && runs()) Check(backend_->AddBias(y, *norm.bias));
}

void Pass::Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                 const TensorView& y) {
  if (runs()) Check(backend_->Embed(table, tokens, y));
}

void Pass::AdaptEmbedding(std::span<const std::int32_t> tokens, const TensorView& y) {
  if (adapters_ != nullptr && runs()) Check(adapters_->ApplyEmbedding(*backend_, tokens, y));
}

void Pass::Multiply(const TensorView& x, const TensorView& y) {
  if (runs()) Check(backend_->Multiply(x, y));
}

void Pass::Add(const TensorView& x, const TensorView& y) {
  if (runs()) Check(backend_->Add(x, y));
}

void Pass::Copy(const TensorView& from, const TensorView& to) {
  if (runs()) Check(backend_->CopyValues(from, to));
}

void Pass::CopyFromHost(const float* values, const TensorView& to) {
  if (!runs()) return;
  const std::span from(values, static_cast<std::size_t>(to.elements()));
  Check(backend_->CopyFromHost(std::as_bytes(from), to));
}

void Pass::Gate(const TensorView& gate, const TensorView& up, Activation activation) {
  if (runs()) Check(backend_->Gate(gate, up, activation));
}

void Pass::GateClamped(const TensorView& gate, const TensorView& up, float alpha, float limit) {
  if (runs()) Check(backend_->GateClamped(gate, up, alpha, limit));
}

void Pass::Activate(const TensorView& x, Activation activation) {
  if (runs()) Check(backend_->Activate(x, activation));
}

void Pass::Xielu(const TensorView& x, const XieluParams& params) {
  if (runs()) Check(backend_->Xielu(x, params));
}

void Pass::Scale(const TensorView& x, float factor) {
  if (runs()) Check(backend_->Scale(x, factor));
}

void Pass::SoftCap(const TensorView& x, float cap) {
  if (runs()) Check(backend_->SoftCap(x, cap));
}

void Pass::ScaleTokens(const TensorView& x, std::span<const float> factors) {
  if (runs()) Check(backend_->ScaleColumns(ColumnsOf(x, batch_), factors));
}

void Pass::Rope(const TensorView& heads, const RopeParams& rope) {
  if (!axes_.positions.empty()) return RotateByAxes(heads, rope);
  if (runs()) Check(backend_->Rope(heads, positions_, rope));
}

// A rotation for each axis, in which the pairs of the others have the frequency 0: they are rotated by nothing. A factor
// would be rounded at another place than in one rotation.
void Pass::RotateByAxes(const TensorView& heads, const RopeParams& rope) {
  constexpr std::uint8_t kAxes = 3;
  const std::size_t pairs = rope.inv_freq.size();
  if (pairs == 0 || !runs()) return;
  std::array<float, 512> frequencies{};
  const auto batch = static_cast<std::size_t>(batch_);
  if (pairs != axes_.of_pair.size() || pairs > frequencies.size() || rope.magnitude != 1.0f ||
      axes_.positions.size() != batch * kAxes) {
    return Check(
        {StatusCode::kInternal,
         StrCat("a rotation of ", pairs, " pairs has axes of ", axes_.of_pair.size(), ", and ",
                axes_.positions.size(), " positions of three axes for ", batch, " tokens")});
  }
  RopeParams one = rope;
  one.inv_freq = std::span(frequencies).first(pairs);
  for (std::uint8_t axis = 0; axis < kAxes; ++axis) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      frequencies[pair] = axes_.of_pair[pair] == axis ? rope.inv_freq[pair] : 0.0f;
    }
    if (runs()) Check(backend_->Rope(heads, axes_.positions.subspan(axis * batch, batch), one));
  }
}

void Pass::Put(int layer, const TensorView& k, const TensorView& v) {
  if (!runs()) return;
  cache_->SetLayer(layer);
  Check(cache_->Put(k, v));
  ended_ = ends_after_put_;
}

void Pass::Attend(int layer, const TensorView& q, const AttentionOptions& options,
                  const TensorView& out) {
  if (!runs()) return;
  cache_->SetLayer(layer);
  auto storage = cache_->Storage();
  if (!storage.ok()) return Check(std::move(storage).TakeStatus());
  Check(backend_->Attention(*storage, q, cache_->Visible(), options, out));
}

void Pass::AttendView(int layer, const Visibility& visible, const TensorView& q,
                      const AttentionOptions& options, const TensorView& out) {
  if (!runs()) return;
  cache_->SetLayer(layer);
  auto storage = cache_->Storage();
  if (!storage.ok()) return Check(std::move(storage).TakeStatus());
  Check(backend_->Attention(*storage, q, visible, options, out));
}

void Pass::Attention(int layer, const TensorView& q, const TensorView& k, const TensorView& v,
                     const AttentionOptions& options, const TensorView& out) {
  if (attention_ != nullptr) return attention_->Run(*this, layer, q, k, v, options, out);
  Put(layer, k, v);
  Attend(layer, q, options, out);
}

void Pass::ShortConv(int layer, const TensorView& x, const ConvTaps& taps, const TensorView& y) {
  if (!runs()) return;
  RecurrentCache& cache = *cache_->Recurrent();
  auto segments = cache.Segments(layer, StateKind::kConvolution);
  if (!segments.ok()) return Check(std::move(segments).TakeStatus());
  Check(backend_->ShortConv(x, taps, *segments, y));
  if (runs() && cache.NeedsInputs()) {
    auto kept = cache.DraftInputs(layer);
    if (!kept.ok()) return Check(std::move(kept).TakeStatus());
    Check(KeepConvInputs(*backend_, *kept, x));
  }
  if (runs()) Check(cache.MarkWritten(layer, StateKind::kConvolution));
}

void Pass::DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                      const TensorView& steps, const TensorView& decays) {
  if (runs()) Check(backend_->DecayRates(raw, bias, rates, steps, decays));
}

void Pass::Scan(int layer, const ScanInputs& inputs, const ScanOptions& options,
                const TensorView& out) {
  if (!runs()) return;
  RecurrentCache& cache = *cache_->Recurrent();
  auto segments = cache.Segments(layer, StateKind::kRecurrent);
  if (!segments.ok()) return Check(std::move(segments).TakeStatus());
  Check(backend_->StateScan(inputs, options, *segments, out));
  if (runs() && cache.NeedsInputs()) {
    auto kept = cache.DraftInputs(layer);
    if (!kept.ok()) return Check(std::move(kept).TakeStatus());
    Check(KeepScanInputs(*backend_, *kept, inputs));
  }
  if (runs()) Check(cache.MarkWritten(layer, StateKind::kRecurrent));
}

void Pass::CrossAttention(int layer, int type, const KvShape& shape, const TensorView& q,
                          const AttentionOptions& options, const TensorView& out) {
  if (!runs()) return;
  cache_->SetLayer(layer);
  if (WrapperCache* const wrapper = cache_->Wrapper(); wrapper != nullptr) {
    wrapper->SetLayerType(type);
  }
  auto storage = cache_->Storage();
  // Before the first output the cache has no cells. Every token's history is then empty, so the
  // kernel reads none and writes zeros.
  const LayerKv nothing{.shape = shape};
  if (!storage.ok() && storage.status().code() != StatusCode::kNotFound) {
    return Check(std::move(storage).TakeStatus());
  }
  Check(backend_->Attention(storage.ok() ? *storage : nothing, q, cache_->Visible(), options, out));
}

void Pass::EncoderOutputMask(std::span<float> mask) {
  if (!runs()) return;
  const Visibility& visible = cache_->Visible();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const auto history = static_cast<std::size_t>(visible.history_of_query[i]);
    mask[i] = visible.histories[history].empty() ? 0.0f : 1.0f;
  }
}

}  // namespace kvcache
