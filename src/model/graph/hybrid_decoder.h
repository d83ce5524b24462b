// A decoder some of whose layers are recurrent: what they remember of a sequence is a state of
// fixed size, in a RecurrentCache beside the attention layers' keys and values.
//
// Passes of such a model take batches that give each of their sequences the same number of tokens,
// side by side and ascending: the cache refuses others.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string_view>

#include "model/graph/decoder.h"
#include "model/graph/recurrent_params.h"

namespace kvcache {

class HybridDecoder : public Decoder {
 public:
  HybridDecoder(Backend& backend, std::string_view architecture, LayerParams params,
                RecurrentParams recurrent)
      : Decoder(backend, architecture, std::move(params)), recurrent_(std::move(recurrent)) {}

  std::unique_ptr<Cache> MakeCache() override;

 protected:
  std::vector<LayerMemory> Memory() const override;
  const RecurrentParams& recurrent() const { return recurrent_; }
  bool IsRecurrent(int layer) const {
    return params().kv_heads[static_cast<std::size_t>(layer)] == 0;
  }

 private:
  RecurrentParams recurrent_;
};

}  // namespace kvcache
