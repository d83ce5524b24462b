#include "model/graph/hybrid_decoder.h"

#include "kvcache/recurrent_cache.h"
#include "model/graph/draft_replay.h"

namespace kvcache {

std::unique_ptr<Cache> HybridDecoder::MakeCache() {
  RecurrentOptions options;
  options.layers = recurrent_.layers;
  options.conv_dim = recurrent_.taps > 0 ? recurrent_.taps - 1 : 0;
  options.conv_channels = recurrent_.channels;
  options.state_size = recurrent_.state_size();
  options.attention.shift_keys = ShiftKeys();
  options.attention.keys_identity = KeysIdentity();
  options.attention.window = AttentionWindow();
  options.attention.retained_tokens = TwiceTheWindow(AttentionWindow());
  const DraftReplayer replayer(backend(), recurrent_, scan_options());
  options.replay_drafts = replayer;
  options.draft_inputs = replayer.inputs();
  return WithHeadCache(MakeRecurrentCache(std::move(options)));
}

int HybridDecoder::AttentionWindow() const {
  for (int i = 0; i < params().layers; ++i) {
    if (params().kv_heads[static_cast<std::size_t>(i)] > 0) return attention_span(i).window;
  }
  return 0;
}

std::vector<LayerMemory> HybridDecoder::Memory() const {
  // A convolution of n taps needs the n - 1 inputs before the next token.
  const std::int64_t inputs = std::int64_t{recurrent_.taps - 1} * recurrent_.channels;
  std::vector<LayerMemory> layers;
  for (const LayerMemory& layer : Decoder::Memory()) {
    if (layer.kv.kv_heads > 0) layers.push_back(layer);
    if (!IsRecurrent(layer.layer)) continue;
    layers.push_back({.layer = layer.layer,
                      .kind = LayerMemory::Kind::kRecurrent,
                      .state_values = inputs + recurrent_.state_size()});
  }
  return layers;
}

}  // namespace kvcache
