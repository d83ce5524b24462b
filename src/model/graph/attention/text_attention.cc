#include "model/graph/attention/text_attention.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

Status TextAttention::Reserve(KvBackend& backend, const KvShape& shape, std::int64_t tokens) {
  if (layer_.shape == shape && layer_.cells >= tokens) return Status::Ok();
  LayerKv layer{.shape = shape,
                .layout = backend.preferred_cache_config().layout,
                .cells = (tokens + kCellTile - 1) / kCellTile * kCellTile};
  KVCACHE_ASSIGN_OR_RETURN(k_, backend.Allocate(static_cast<std::size_t>(layer.KBytes())));
  KVCACHE_ASSIGN_OR_RETURN(v_, backend.Allocate(static_cast<std::size_t>(layer.VBytes())));
  const auto message = [&] { return StrCat("no memory for a text of ", tokens, " tokens"); };
  KVCACHE_RETURN_IF_ERROR(Guarded(message, [&] {
    history_of_query_.assign(static_cast<std::size_t>(layer.cells), 0);
    bidirectional_.assign(static_cast<std::size_t>(layer.cells), 1);
  }));
  layer.k = k_->data();
  layer.v = v_->data();
  layer_ = layer;
  return Status::Ok();
}

void TextAttention::Run(Pass& pass, const TensorView& q, const TensorView& k, const TensorView& v,
                        const AttentionOptions& options, const TensorView& out) {
  if (!pass.runs()) return;
  const auto tokens = static_cast<std::size_t>(pass.batch());
  const auto length = static_cast<std::int32_t>(tokens);
  // The whole text is one run of cells from 0 on, and every query sees all of it.
  const CellRun cells[] = {{0, length}};
  pass.Check(pass.backend().StoreKv(layer_, k, v, cells));
  if (!pass.runs()) return;
  const HistoryRun runs[] = {{0, 0, length}};
  const std::span<const HistoryRun> histories[] = {runs};
  pass.Check(
      pass.backend().Attention(layer_, q,
                               {.positions = pass.positions(),
                                .history_of_query = std::span(history_of_query_).first(tokens),
                                .histories = histories,
                                .bidirectional = std::span(bidirectional_).first(tokens)},
                               options, out));
}

}  // namespace kvcache
