#include "model/graph/attention/text_attention.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::int64_t WholeTiles(std::int64_t cells) {
  return (cells + kCellTile - 1) / kCellTile * kCellTile;
}

}  // namespace

void TextAttention::Sight::Reserve(std::size_t most_histories, std::size_t queries) {
  runs.reserve(most_histories);
  histories.reserve(most_histories);
  history_of_query.reserve(queries);
}

void TextAttention::Sight::Clear() {
  runs.clear();
  histories.clear();
  history_of_query.clear();
}

void TextAttention::SetReach(std::vector<std::int32_t> of_layer) {
  reach_of_layer_ = std::move(of_layer);
  reach_ = reach_of_layer_.empty() ? 0 : std::ranges::max(reach_of_layer_);
}

Status TextAttention::Reserve(KvBackend& backend, const KvShape& shape, std::int64_t tokens,
                              std::int64_t texts) {
  if (layer_.shape == shape && most_tokens_ == tokens && most_texts_ == texts) return Status::Ok();
  most_tokens_ = most_texts_ = 0;
  // Each text begins a tile and leaves the rest of its last one free.
  const LayerKv layer{.shape = shape,
                      .layout = backend.preferred_cache_config().layout,
                      .cells = WholeTiles(tokens + texts * (kCellTile - 1))};
  KVCACHE_ASSIGN_OR_RETURN(k_, backend.Allocate(static_cast<std::size_t>(layer.KBytes())));
  KVCACHE_ASSIGN_OR_RETURN(v_, backend.Allocate(static_cast<std::size_t>(layer.VBytes())));
  const auto most = static_cast<std::size_t>(tokens);
  const auto message = [&] { return StrCat("no memory for texts of ", tokens, " tokens"); };
  KVCACHE_RETURN_IF_ERROR(Guarded(message, [&] {
    all_.Clear();
    windows_.Clear();
    cells_.reserve(static_cast<std::size_t>(texts));
    positions_.reserve(most);
    bidirectional_.assign(most, 1);
    all_.Reserve(static_cast<std::size_t>(texts), most);
    if (reach_ > 0) windows_.Reserve(most, most);
  }));
  layer_ = layer;
  layer_.k = k_->data();
  layer_.v = v_->data();
  most_tokens_ = tokens;
  most_texts_ = texts;
  return Status::Ok();
}

// A history of each query is the part of its text that it sees.
void TextAttention::AddWindows(const HistoryRun& text) {
  for (std::int32_t i = 0; i < text.length; ++i) {
    const std::int32_t begin = std::max(0, i - reach_);
    const std::int32_t end = std::min(text.length, i + reach_ + 1);
    windows_.history_of_query.push_back(static_cast<std::int32_t>(windows_.histories.size()));
    windows_.Add({begin, text.cell + begin, end - begin});
  }
}

void TextAttention::SetTexts(std::span<const std::int32_t> lengths,
                             const std::function<void()>& before_layer) {
  before_layer_ = before_layer ? &before_layer : nullptr;
  cells_.clear();
  positions_.clear();
  all_.Clear();
  windows_.Clear();
  const bool has_windows = reach_ > 0 && std::ranges::max(lengths) > reach_ + 1;
  std::int32_t cell = 0;
  for (const std::int32_t length : lengths) {
    const HistoryRun text{0, cell, length};
    const auto history = static_cast<std::int32_t>(all_.histories.size());
    for (Position i = 0; i < length; ++i) positions_.push_back(i);
    all_.history_of_query.insert(all_.history_of_query.end(), static_cast<std::size_t>(length),
                                 history);
    all_.Add(text);
    if (has_windows) AddWindows(text);
    cells_.push_back({cell, length});
    cell = static_cast<std::int32_t>(WholeTiles(cell + length));
  }
}

void TextAttention::Run(Pass& pass, int layer, const TensorView& q, const TensorView& k,
                        const TensorView& v, const AttentionOptions& options,
                        const TensorView& out) {
  if (!pass.runs()) return;
  if (layer > 0 && before_layer_ != nullptr) (*before_layer_)();
  pass.Check(pass.backend().StoreKv(layer_, k, v, cells_));
  if (!pass.runs()) return;
  const bool in_window = !windows_.histories.empty() && !reach_of_layer_.empty() &&
                         reach_of_layer_[static_cast<std::size_t>(layer)] > 0;
  const Sight& sight = in_window ? windows_ : all_;
  pass.Check(pass.backend().Attention(
      layer_, q,
      {.positions = pass.positions(),
       .history_of_query = sight.history_of_query,
       .histories = sight.histories,
       .bidirectional = std::span(bidirectional_).first(positions_.size())},
      options, out));
}

}  // namespace kvcache
