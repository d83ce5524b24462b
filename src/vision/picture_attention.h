// Attention among the patches of one picture: all of them see each other, or those of one window.
//
// The keys and values of one layer lie here, in f32; the next layer's take their place. They are stored in pieces of
// rows, and then queries attend in pieces.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/backend.h"
#include "model/graph/pass.h"

namespace kvcache::vision {

class PictureAttention {
 public:
  // Allocates memory for `rows` patches, unless it is there. Errors: kOutOfMemory.
  Status Reserve(KvBackend& backend, const KvShape& shape, std::int64_t rows);
  std::int64_t bytes() const { return k_ == nullptr ? 0 : layer_.KBytes() + layer_.VBytes(); }

  // Says where the windows of the next picture end, the last one with its last patch. Errors: kOutOfMemory. REQUIRES:
  // Reserve for as many rows.
  Status SetWindows(std::span<const std::int32_t> ends);

  // Stores the keys and values [dim, heads, batch] of rows from `first` on.
  void Store(Pass& pass, std::int64_t first, const TensorView& k, const TensorView& v);

  // out = attention of q [dim, heads, batch], the queries of rows from `first` on. `in_windows`: among the rows of a
  // query's window; else among all.
  enum class Reach : std::uint8_t { kAll, kWindow };
  void Attend(Pass& pass, std::int64_t first, const TensorView& q, Reach reach, float scale,
              const TensorView& out);

 private:
  // What the rows of a picture see.
  struct Sight {
    std::vector<HistoryRun> runs;  // one for each history
    std::vector<std::span<const HistoryRun>> histories;
    std::vector<std::int32_t> history_of_row;
    std::vector<Position> positions;  // of a row in its history

    void Set(std::span<const std::int32_t> ends);
  };

  LayerKv layer_;
  std::unique_ptr<Buffer> k_, v_;
  std::vector<std::uint8_t> bidirectional_;  // all 1
  Sight all_, windows_;
};

}  // namespace kvcache::vision
