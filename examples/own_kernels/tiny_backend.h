// A minimal KvBackend: plain loops over host memory in f32.
//
// It prefers the plain layout, so that attention can use Cache::Get(): dense views of the history
// and a mask. A fused kernel would implement Attention over Storage() and Visible(); this backend
// returns kUnsupported there.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kvcache/cache.h"
#include "kvcache/kv_backend.h"

namespace example {

class TinyBackend : public kvcache::KvBackend {
 public:
  std::string_view name() const override { return "tiny"; }
  kvcache::CacheConfig preferred_cache_config() const override { return {}; }
  kvcache::Status CheckKvTypes(kvcache::DType k_type, kvcache::DType v_type,
                               kvcache::KvLayout layout) const override;
  kvcache::Result<std::unique_ptr<kvcache::Buffer>> Allocate(std::size_t size_bytes) override;
  kvcache::Status StoreKv(const kvcache::LayerKv& layer, const kvcache::TensorView& k,
                          const kvcache::TensorView& v,
                          std::span<const kvcache::CellRun> cells) override;
  kvcache::Status CopyCells(const kvcache::LayerKv& layer,
                            std::span<const kvcache::CellMove> moves) override;
  kvcache::Status CopyValues(const kvcache::TensorView& from,
                             const kvcache::TensorView& to) override;
  kvcache::Status ShiftKeys(const kvcache::LayerKv& layer, std::span<const kvcache::CellRun> cells,
                            kvcache::Position offset, const kvcache::RopeParams& rope) override;
  kvcache::Status Attention(const kvcache::LayerKv& layer, const kvcache::TensorView& q,
                            const kvcache::Visibility& visibility,
                            const kvcache::AttentionOptions& options,
                            const kvcache::TensorView& out) override;
};

// Computes out[head_dim, heads, batch] = softmax(scale · q·K + mask) · V. REQUIRES: the number of
// query heads is a multiple of K's heads.
void Attend(const kvcache::TensorView& q, const kvcache::DenseKv& history, float scale,
            const kvcache::TensorView& out);

}  // namespace example
