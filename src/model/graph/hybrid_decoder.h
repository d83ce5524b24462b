// A decoder with recurrent layers. Such a layer remembers a sequence as a state of fixed size,
// which a RecurrentCache holds together with the attention layers' keys and values. A layer may have both.
//
// In a batch without drafts, a sequence's tokens are adjacent and ascend by position. The cache
// refuses other batches.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>

#include "model/graph/block_decoder.h"
#include "model/graph/recurrent_params.h"

namespace kvcache {

class HybridDecoder : public BlockDecoder {
 public:
  HybridDecoder(Backend& backend, std::string_view architecture, LayerParams params,
                RecurrentParams recurrent, BlockParams blocks)
      : BlockDecoder(backend, architecture, std::move(params), std::move(blocks)),
        recurrent_(std::move(recurrent)) {}

  std::unique_ptr<Cache> MakeCache() override;

 protected:
  std::vector<LayerMemory> Memory() const override;
  // Returns how the scans update their states; without skip factors. A family without scans needs
  // no override.
  virtual ScanOptions scan_options() const { return {}; }
  const RecurrentParams& recurrent() const { return recurrent_; }
  bool IsRecurrent(int layer) const { return std::ranges::binary_search(recurrent_.layers, layer); }

 private:
  // Returns the window of the layers with attention, which all have the same; 0: none.
  int AttentionWindow() const;

  RecurrentParams recurrent_;
};

}  // namespace kvcache
