// The layers of a model that have a sliding window, by the architecture's rule and the file's keys.
//
//   attention.sliding_window           tokens that a query sees, its own included
//   attention.sliding_window_pattern   n: every n-th layer has no window; 0: all layers have one.
//                                      Or an array of one bool per layer: true for a window.
//
//   n = 3     layer  0 1 2 3 4 5
//             window w w . w w .
//
// In modern-bert the first of every n layers has no window. A window of an encoder is as wide on both sides
// together.
//
// Source: the keys as llama.cpp reads them (llama_hparams::set_swa_pattern).
// Thread safety: pure.
#pragma once

#include <vector>

#include "kvcache/status.h"
#include "model/graph/layer_caches.h"
#include "model/load/hyperparameters.h"
#include "model/load/key_reader.h"

namespace kvcache {

// Returns the span of each layer. For architectures without windows every layer sees all tokens,
// and the keys above stay unread. Errors name the key: it is missing but required, is out of range,
// or is a pattern of another length.
Result<std::vector<AttentionSpan>> ReadAttentionSpans(KeyReader& keys, const LayerParams& params);

}  // namespace kvcache
