#include "cache/cells/kv_page.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

std::int64_t LayOutOnHost(std::span<LayerKv> layers, std::int64_t cells, std::byte* bytes) {
  constexpr auto kAlignment = static_cast<std::int64_t>(AlignedBuffer::kAlignmentBytes);
  std::int64_t size = 0;
  for (LayerKv& layer : layers) {
    layer.k = nullptr;
    layer.v = nullptr;
    if (layer.shape.kv_heads == 0) continue;
    layer.layout = KvLayout::kTiled;
    layer.v_transposed = false;
    layer.on_host = true;
    layer.cells = cells;
    if (bytes != nullptr) layer.k = bytes + size;
    size += RoundUp(layer.KBytes(), kAlignment);
    if (bytes != nullptr && !layer.shape.v_in_k) layer.v = bytes + size;
    size += RoundUp(layer.VBytes(), kAlignment);
  }
  return size;
}

Result<std::shared_ptr<KvPage>> KvPage::Make(std::span<const LayerKv> layers, Position begin,
                                             Position end, std::shared_ptr<HostBytes> count) {
  const Position first = begin / kCellTile * kCellTile;
  const auto cells = static_cast<std::int32_t>(RoundUp(end, kCellTile) - first);
  const auto message = [&] {
    return StrCat("no memory for the positions [", begin, ", ", end, ") of a snapshot");
  };
  return Guarded(message, [&]() -> Result<std::shared_ptr<KvPage>> {
    std::shared_ptr<KvPage> page(new KvPage());
    page->first_ = first;
    page->layers_.assign(layers.begin(), layers.end());
    const std::int64_t size = LayOutOnHost(page->layers_, cells, nullptr);
    auto memory = count->memory.Take(static_cast<std::size_t>(size));
    if (!memory.ok()) return memory.status();
    page->memory_ = std::move(*memory);
    LayOutOnHost(page->layers_, cells, page->memory_.data());
    page->count_ = std::move(count);
    page->count_->Add(page->bytes());
    return page;
  });
}

KvPage::~KvPage() {
  if (count_ == nullptr) return;
  count_->Add(-bytes());
  count_->memory.Give(std::move(memory_));
}

Status TransferLayers(KvBackend& backend, std::span<const LayerKv> from,
                      std::span<const LayerKv> to, const CellMove& move) {
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    if (from[i].k == nullptr || to[i].k == nullptr) continue;
    KVCACHE_RETURN_IF_ERROR(backend.TransferCells(from[i], to[i], std::span(&move, 1)));
  }
  return Status::Ok();
}

}  // namespace kvcache
