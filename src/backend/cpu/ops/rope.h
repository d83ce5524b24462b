// Rotary position embedding (RoPE): rotates pairs of values by an angle that grows with the
// position.
//
// Exactness: the angle is double(position) × double(inv_freq); its cosine and sine, times the
// magnitude, are taken in double and rounded once.
// Thread safety: one call at a time per pool and cache.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// A cache of the cosines and sines of a pass's positions. All layers of a pass use the same table;
// models with two kinds of layers use two.
class RopeTables {
 public:
  struct Table {
    std::vector<Position> positions;
    std::vector<float> inv_freq;
    float magnitude = 0.0f;
    std::vector<float> cosines;  // [positions][inv_freq]
    std::vector<float> sines;
  };

  // Returns the table for these arguments, computed if necessary in place of the least recently
  // used one. Valid until the next call. Allocates only if the table is larger than all before.
  const Table& Find(ThreadPool& pool, std::span<const Position> positions, const RopeParams& rope);

 private:
  static void Fill(ThreadPool& pool, Table& table);

  std::array<Table, 2> tables_;
  std::size_t last_used_ = 0;
};

// The rules for Rope's arguments; it reads no data.
Status CheckRope(const TensorView& x, std::span<const Position> positions, const RopeParams& rope);

// Implements Backend::Rope. Heads and tokens may have any stride.
Status Rope(ThreadPool& pool, RopeTables& tables, const TensorView& x,
            std::span<const Position> positions, const RopeParams& rope);

}  // namespace kvcache::cpu
