// Rotary position embedding: turns pairs of values by an angle that grows with the position.
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

// Cosines and sines of the positions of a pass: all its layers ask for the same ones, models
// with two kinds of layers for two.
class RopeTables {
 public:
  struct Table {
    std::vector<Position> positions;
    std::vector<float> inv_freq;
    float magnitude = 0.0f;
    std::vector<float> cosines;  // [positions][inv_freq]
    std::vector<float> sines;
  };

  // The table for these arguments: one of those kept, or computed in place of the older one.
  // Valid until the next call. Allocates only when it outgrows all before.
  const Table& Find(ThreadPool& pool, std::span<const Position> positions, const RopeParams& rope);

 private:
  static void Fill(ThreadPool& pool, Table& table);

  std::array<Table, 2> tables_;
  std::size_t last_used_ = 0;
};

// Backend::Rope. Heads and tokens may lie any stride apart.
Status Rope(ThreadPool& pool, RopeTables& tables, const TensorView& x,
            std::span<const Position> positions, const RopeParams& rope);

}  // namespace kvcache::cpu
