#include "backend/cpu/linear/pack_weight.h"

#include <algorithm>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/refused_scales.h"
#include "platform/huge_pages.h"

namespace kvcache::cpu {

std::size_t PanelBytesOf(const TensorView& w) {
  return static_cast<std::size_t>(block::Panels(w.dims[1]) * w.dims[2] *
                                  block::PanelBytes(w.dtype, w.dims[0]));
}

Result<WeightPiece> PackWeight(ThreadPool& pool, WeightMemory& memory, const TensorView& w) {
  const std::int64_t inputs = w.dims[0];
  const std::int64_t outputs = w.dims[1];
  const std::int64_t panels = block::Panels(outputs);
  const std::int64_t panel_bytes = block::PanelBytes(w.dtype, inputs);
  KVCACHE_ASSIGN_OR_RETURN(WeightPiece piece, memory.Make(PanelBytesOf(w)));
  const std::int64_t row_bytes = BytesOf(w.dtype, inputs);
  RefusedScales scales(w);
  const std::int64_t all = panels * w.dims[2];
  for (int node = 0; node <= pool.nodes() && pool.nodes() > 1; ++node) {
    AskForSmallPagesAround(piece.data() + pool.PartBegin(all, node) * panel_bytes);
  }
  const auto pack = [&](std::int64_t panel, int) {
    const std::int64_t row = panel % panels * block::kPanelRows;
    const std::int64_t first = panel / panels * outputs + row;
    const std::int64_t rows = std::min(block::kPanelRows, outputs - row);
    scales.CheckRows(first, first + rows);
    block::PackPanel(w.dtype, w.data + first * row_bytes, rows, inputs,
                     piece.data() + panel * panel_bytes);
  };
  // Whoever writes a page first has it on its node (weight_nodes.h).
  pool.ParallelFor(all, pack, TakenBy::kHomeNode);
  KVCACHE_RETURN_IF_ERROR(scales.status());
  return piece;
}

}  // namespace kvcache::cpu
