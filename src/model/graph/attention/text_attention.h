// Bidirectional attention within whole texts, as encoders compute it: each token sees all others of its text,
// or those within a distance in layers with a window. A call keeps nothing for the next one except allocated
// memory for keys and values, in f32.
//
// A pass may have several texts. Each has cells of its own, from a tile's first cell on, and a history of one
// run, so that no token sees another text:
//
//   tokens   a0 a1 a2 b0 b1          lengths 3, 2
//   cells    a0 a1 a2 . … . b0 b1    positions 0 1 2 0 1
//
// Exactness: attention computes a token's result in an order that depends on positions alone. The result is
// the same whatever other texts are in the pass.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/backend.h"
#include "model/graph/pass.h"

namespace kvcache {

class TextAttention final : public PassAttention {
 public:
  // Sets the distance that tokens see to both sides in each layer; 0: all. Layers with one have the same. An empty
  // list, the default: all layers see all.
  void SetReach(std::vector<std::int32_t> of_layer);

  // Allocates memory for passes of up to `tokens` tokens in up to `texts` texts, with keys and values of
  // `shape`. Errors: kOutOfMemory with the number.
  Status Reserve(KvBackend& backend, const KvShape& shape, std::int64_t tokens, std::int64_t texts);

  std::int64_t bytes() const { return k_ == nullptr ? 0 : layer_.KBytes() + layer_.VBytes(); }
  std::int64_t reserved_tokens() const { return most_tokens_; }
  std::int64_t reserved_texts() const { return most_texts_; }

  // Says which texts the next pass has, one after another. `before_layer`, which must outlive the pass, is called before the
  // attention of each layer but the first, unless it is empty. REQUIRES: each has a token, and Reserve for as many.
  void SetTexts(std::span<const std::int32_t> lengths,
                const std::function<void()>& before_layer = {});
  // Returns the position of each token in its text, valid until the next SetTexts.
  std::span<const Position> positions() const { return positions_; }

  // out = attention of q over k and v [dim, heads, batch]. REQUIRES: the pass has the tokens of SetTexts.
  void Run(Pass& pass, int layer, const TensorView& q, const TensorView& k, const TensorView& v,
           const AttentionOptions& options, const TensorView& out) override;

 private:
  // What the queries of a pass see.
  struct Sight {
    std::vector<HistoryRun> runs;  // one per history
    std::vector<std::span<const HistoryRun>> histories;
    std::vector<std::int32_t> history_of_query;

    void Add(const HistoryRun& run) {
      runs.push_back(run);
      histories.push_back(std::span(runs).last(1));
    }
    void Reserve(std::size_t most_histories, std::size_t queries);
    void Clear();
  };

  void AddWindows(const HistoryRun& text);

  std::vector<std::int32_t> reach_of_layer_;
  std::int32_t reach_ = 0;  // of layers with a window
  LayerKv layer_;
  std::unique_ptr<Buffer> k_, v_;
  std::int64_t most_tokens_ = 0;
  std::int64_t most_texts_ = 0;
  const std::function<void()>* before_layer_ = nullptr;  // of the present pass
  std::vector<CellRun> cells_;                           // of each text
  std::vector<Position> positions_;                      // [tokens]
  std::vector<std::uint8_t> bidirectional_;              // [most tokens], all 1
  Sight all_;                                            // a history for each text
  Sight windows_;                                        // a history for each token
};

}  // namespace kvcache
