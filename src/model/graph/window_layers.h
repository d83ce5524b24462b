// Which layers of a model see a window, and which everything: by its architecture's rule and its
// file's keys.
//
//   attention.sliding_window           tokens that a query sees, its own included
//   attention.sliding_window_pattern   n: every n-th layer sees everything, 0: none does
//                                      an array of bools, one for each layer: has it a window?
//
//   n = 3     layer 0 1 2 3 4 5
//             sees  w w . w w .
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

// [layers]. Reads the keys above where the architecture has windows; elsewhere every layer sees
// everything, and the keys are left unread. Errors name the key: missing where there must be one,
// out of range, or a pattern of another length.
Result<std::vector<AttentionSpan>> ReadAttentionSpans(KeyReader& keys, const LayerParams& params);

}  // namespace kvcache
