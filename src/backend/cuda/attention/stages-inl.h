// Copies the keys and values of a task's splits through shared memory, in stages: first those of a split's keys,
// then those of its values, then those of the next split. Copies run kAttendStages - 1 stages ahead.
//
//   float keys     [slots][key_step + 1][16 cells]                    key_step dims of all slots
//   block types    [slots][codes of step blocks, then their scales]   also values; kv_blocks.h has the codes
//   float values   [pass_positions][row_bytes]                        pass_dims values of some positions
//   V in K         [pass_tiles][pass_dims][16 cells + 16 bytes]
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/split-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_DEVICE int SlotBytes(KvType type, std::int32_t step) {
  if (IsBlockType(type)) return step * (CodeBytes(type) + kScaleBytes);
  return (step + 1) * kAttendTile * ValueBytes(type);
}
// A value of a tile's sixteen cells, and 16 bytes more, so that threads with neighbouring values read different
// banks.
KVCACHE_DEVICE int TileValueBytes(KvType type) {
  return kAttendTile * ValueBytes(type) + 16;
}

KVCACHE_DEVICE void CopyElement(const std::uint8_t* from, std::uint8_t* to, int bytes) {
  if (bytes == 4) {
    reinterpret_cast<Word1*>(to)->w = reinterpret_cast<const Word1*>(from)->w;
  } else {
    reinterpret_cast<Half1*>(to)->w = reinterpret_cast<const Half1*>(from)->w;
  }
}
KVCACHE_DEVICE void ClearElement(std::uint8_t* to, int bytes) {
  if (bytes == 4) {
    reinterpret_cast<Word1*>(to)->w = 0;
  } else {
    reinterpret_cast<Half1*>(to)->w = 0;
  }
}

// The address of float key d of a cell.
KVCACHE_DEVICE const std::uint8_t* KeyAt(const AttendArgs& args, std::int32_t kv_head,
                                         std::int32_t cell, std::int32_t d) {
  const std::int64_t at =
      args.tiled != 0 ? kv_head * args.cells * args.k_dim +
                            (std::int64_t{cell / kAttendTile} * args.k_dim + d) * kAttendTile +
                            cell % kAttendTile
                      : kv_head * args.k_head + cell * args.k_cell + d;
  return args.k + at * ValueBytes(args.k_type);
}
KVCACHE_DEVICE const std::uint8_t* ValueAt(const AttendArgs& args, std::int32_t kv_head,
                                           std::int32_t cell, std::int32_t d) {
  if (args.values_in_tiles != 0) return KeyAt(args, kv_head, cell, d);
  const std::int64_t at = kv_head * args.v_head + cell * args.v_cell + d * args.v_value;
  return args.v + at * ValueBytes(args.v_type);
}

// A head's tiles of a block type, in global memory.
struct BlockTiles {
  const std::uint8_t* head;
  std::int64_t tile_bytes;
  std::int64_t scales;  // offset in a tile
  int code_bytes;
};
KVCACHE_DEVICE BlockTiles TilesOf(const std::uint8_t* base, KvType type, std::int32_t dim,
                                  std::int64_t cells, std::int32_t kv_head) {
  const int code_bytes = CodeBytes(type);
  const std::int64_t scales = std::int64_t{dim / 32} * code_bytes;
  const std::int64_t tile_bytes = scales + std::int64_t{dim / 32} * kScaleBytes;
  return {base + kv_head * (cells / kAttendTile) * tile_bytes, tile_bytes, scales, code_bytes};
}

// Gathers keys [first, first + count) of the position of each thread.
KVCACHE_DEVICE void GatherFloatKeys(const AttendArgs& args, std::int32_t cell, std::int32_t kv_head,
                                    int first, int count, int slot_bytes, std::uint8_t* to) {
  const int bytes = ValueBytes(args.k_type);
  std::uint8_t* at = to + Thread() / kAttendTile * slot_bytes + Thread() % kAttendTile * bytes;
  KVCACHE_UNROLL_BY(1)
  for (int d = first; d < first + count; ++d, at += kAttendTile * bytes) {
    if (cell >= 0) {
      CopyElement(KeyAt(args, kv_head, cell, d), at, bytes);
    } else {
      ClearElement(at, bytes);
    }
  }
}

KVCACHE_DEVICE void CopyFloatKeys(const AttendArgs& args, const SplitInfo& info,
                                  std::int32_t kv_head, int first, std::uint8_t* to) {
  const int count = Smaller(info.key_step, args.k_dim - first);
  const int slot_bytes = SlotBytes(args.k_type, info.key_step);
  if (info.gathered != 0) {
    return GatherFloatKeys(args, info.cells[Thread()], kv_head, first, count, slot_bytes, to);
  }
  const int all = count * kAttendTile * ValueBytes(args.k_type);
  KVCACHE_UNROLL_BY(1)
  for (int slot = Warp(); slot < info.slots; slot += kAttendWarps) {
    const std::uint8_t* const from = KeyAt(args, kv_head, info.slot_cell[slot], first);
    for (int i = Lane() * 16; i < all; i += 32 * 16)
      AsyncCopy16(to + slot * slot_bytes + i, from + i);
  }
}

// Gathers blocks [first, first + count) of the position of each thread. Keys' codes are words of four values,
// values' codes are bytes of one cell.
template <bool kWords>
KVCACHE_DEVICE void GatherBlocks(const BlockTiles& tiles, std::int32_t cell, int first, int count,
                                 int step, std::uint8_t* to) {
  const int slot_bytes = step * (tiles.code_bytes + kScaleBytes);
  const int at_lane = Thread() % kAttendTile;
  const int from_lane = cell < 0 ? 0 : cell % kAttendTile;
  std::uint8_t* const slot = to + Thread() / kAttendTile * slot_bytes;
  const std::uint8_t* const tile =
      tiles.head + (cell < 0 ? 0 : cell / kAttendTile) * tiles.tile_bytes;
  KVCACHE_UNROLL_BY(1)
  for (int b = 0; b < count; ++b) {
    const std::uint8_t* const from = tile + std::int64_t{first + b} * tiles.code_bytes;
    std::uint8_t* const codes = slot + b * tiles.code_bytes;
    if constexpr (kWords) {
      KVCACHE_UNROLL_BY(1)
      for (int line = 0; line < tiles.code_bytes / 64; ++line) {
        const std::uint32_t word =
            cell < 0 ? 0 : LoadWord(from + (line * kAttendTile + from_lane) * 4);
        reinterpret_cast<Word1*>(codes + (line * kAttendTile + at_lane) * 4)->w = word;
      }
    } else {
      KVCACHE_UNROLL_BY(1)
      for (int i = 0; i < tiles.code_bytes / kAttendTile; ++i) {
        const int line = i / 16 * 4;
        const int byte = i % 16 * 4;
        const std::uint8_t code =
            cell < 0 ? 0 : from[(line + from_lane / 4) * 64 + byte + from_lane % 4];
        codes[(line + at_lane / 4) * 64 + byte + at_lane % 4] = code;
      }
    }
    std::uint8_t* const scale = slot + step * tiles.code_bytes + b * kScaleBytes + at_lane * 2;
    if (cell < 0) {
      ClearElement(scale, 2);
    } else {
      CopyElement(tile + tiles.scales + (first + b) * kScaleBytes + from_lane * 2, scale, 2);
    }
  }
}

template <bool kKeys>
KVCACHE_DEVICE void CopyBlocks(const BlockTiles& tiles, const SplitInfo& info, int first, int step,
                               int all, std::uint8_t* to) {
  const int count = Smaller(step, all - first);
  if (info.gathered != 0) {
    return GatherBlocks<kKeys>(tiles, info.cells[Thread()], first, count, step, to);
  }
  const int slot_bytes = step * (tiles.code_bytes + kScaleBytes);
  for (int slot = Warp(); slot < info.slots; slot += kAttendWarps) {
    const std::uint8_t* const tile =
        tiles.head + info.slot_cell[slot] / kAttendTile * tiles.tile_bytes;
    std::uint8_t* const at = to + slot * slot_bytes;
    const std::uint8_t* const codes = tile + std::int64_t{first} * tiles.code_bytes;
    for (int i = Lane() * 16; i < count * tiles.code_bytes; i += 32 * 16) {
      AsyncCopy16(at + i, codes + i);
    }
    const std::uint8_t* const scales = tile + tiles.scales + first * kScaleBytes;
    for (int i = Lane() * 16; i < count * kScaleBytes; i += 32 * 16) {
      AsyncCopy16(at + step * tiles.code_bytes + i, scales + i);
    }
  }
}

// Gathers values [first, first + count) of the positions [begin, end).
KVCACHE_DEVICE void GatherValueRows(const AttendArgs& args, const SplitInfo& info,
                                    std::int32_t kv_head, int first, int count, int begin, int end,
                                    std::uint8_t* to) {
  const int bytes = ValueBytes(args.v_type);
  KVCACHE_UNROLL_BY(1)
  for (int j = begin + Warp(); j < end; j += kAttendWarps) {
    const std::int32_t cell = info.cells[j];
    if (cell < 0) continue;
    KVCACHE_UNROLL_BY(1)
    for (int d = Lane(); d < count; d += 32) {
      CopyElement(ValueAt(args, kv_head, cell, first + d),
                  to + (j - begin) * args.row_bytes + d * bytes, bytes);
    }
  }
}

KVCACHE_DEVICE void CopyValueRows(const AttendArgs& args, const SplitInfo& info,
                                  std::int32_t kv_head, int first, int count, int begin, int end,
                                  std::uint8_t* to) {
  if (args.copy_values == 0) {
    return GatherValueRows(args, info, kv_head, first, count, begin, end, to);
  }
  const int bytes = ValueBytes(args.v_type);
  const int lanes = 1 << args.row_shift;
  const int offset = (Thread() & (lanes - 1)) * 16;
  const std::uint8_t* const head = args.v + (kv_head * args.v_head + first) * bytes + offset;
  const std::int64_t cell_bytes = args.v_cell * bytes;
  KVCACHE_UNROLL_BY(2)
  for (int j = begin + (Thread() >> args.row_shift); j < end;
       j += kAttendThreads >> args.row_shift) {
    const std::int32_t cell = info.cells[j];
    if (cell < 0) continue;
    const std::uint8_t* const from = head + cell * cell_bytes;
    std::uint8_t* const at = to + (j - begin) * args.row_bytes + offset;
    for (int i = 0; offset + i < count * bytes; i += lanes * 16) AsyncCopy16(at + i, from + i);
  }
}

// Values [first, first + count) of the tiles of slots [begin, end).
KVCACHE_DEVICE void CopyValueTiles(const AttendArgs& args, const SplitInfo& info,
                                   std::int32_t kv_head, int first, int count, int begin, int end,
                                   std::uint8_t* to) {
  const int pieces = ValueBytes(args.k_type);  // of 16 bytes, for sixteen cells
  const int pitch = TileValueBytes(args.k_type);
  for (int slot = begin; slot < end; ++slot) {
    const std::uint8_t* const from = KeyAt(args, kv_head, info.slot_cell[slot], first);
    std::uint8_t* const at = to + (slot - begin) * args.pass_dims * pitch;
    for (int i = Thread(); i < count * pieces; i += kAttendThreads) {
      const int d = pieces == 2 ? i / 2 : i / 4;
      AsyncCopy16(at + d * pitch + (i - d * pieces) * 16, from + std::int64_t{i} * 16);
    }
  }
}

// The stages of a task, one after another. All threads of the block make the same calls. kLatents: values are the
// first blocks of the keys, in the layout of keys.
template <class Shape, bool kBlockKeys, bool kBlockValues, bool kLatents = false>
class Stages {
 public:
  KVCACHE_DEVICE Stages(const AttendArgs& args, const AttendTask& task, SplitInfo* infos,
                        std::uint8_t* memory)
      : args_(args), task_(task), infos_(infos), memory_(memory) {
    KVCACHE_UNROLL_BY(1)
    for (int i = 0; i < kAttendStages - 1; ++i) CopyNext();
  }

  // The memory of the next stage, whose bytes are there. What the threads wrote before is visible to all.
  // The stage before is overwritten.
  KVCACHE_DEVICE const std::uint8_t* Next() {
    AsyncWait<kAttendStages - 2>();
    BlockBarrier();
    CopyNext();
    const std::uint8_t* const at = memory_ + used_ * args_.layout.stage_bytes;
    used_ = (used_ + 1) % kAttendStages;
    return at;
  }

  KVCACHE_DEVICE const SplitInfo& Info(int split) const { return infos_[split % kAttendInfos]; }

 private:
  KVCACHE_DEVICE void CopyNext() {
    if (split_ < task_.splits) {
      SplitInfo& info = infos_[split_ % kAttendInfos];
      if (stage_ == 0) {
        DescribeSplit<Shape>(args_, task_, args_.splits[task_.first_split + split_], info);
      }
      std::uint8_t* const to = memory_ + copied_ * args_.layout.stage_bytes;
      const int keys = info.key_stages;
      int passes = 1;
      if constexpr (!kBlockValues) passes = (args_.v_dim + args_.pass_dims - 1) / args_.pass_dims;
      if (info.slots > 0) {
        if (stage_ < keys) {
          CopyKeys(info, stage_ * info.key_step, to);
        } else {
          CopyValues(info, stage_ - keys, to);
        }
      }
      if (++stage_ == keys + passes * info.value_stages) {
        stage_ = 0;
        ++split_;
      }
    }
    copied_ = (copied_ + 1) % kAttendStages;
    AsyncCommit();
  }

  KVCACHE_DEVICE void CopyKeys(const SplitInfo& info, int first, std::uint8_t* to) {
    if constexpr (kBlockKeys) {
      CopyBlocks<true>(TilesOf(args_.k, args_.k_type, args_.k_dim, args_.cells, task_.kv_head),
                       info, first, info.key_step, args_.k_dim / 32, to);
    } else {
      CopyFloatKeys(args_, info, task_.kv_head, first, to);
    }
  }

  KVCACHE_DEVICE void CopyValues(const SplitInfo& info, int stage, std::uint8_t* to) {
    if constexpr (kLatents) {
      CopyBlocks<true>(TilesOf(args_.k, args_.k_type, args_.k_dim, args_.cells, task_.kv_head),
                       info, stage * info.value_step, info.value_step, args_.v_dim / 32, to);
    } else if constexpr (kBlockValues) {
      CopyBlocks<false>(TilesOf(args_.v, args_.v_type, args_.v_dim, args_.cells, task_.kv_head),
                        info, stage * info.value_step, info.value_step, args_.v_dim / 32, to);
    } else {
      const int pass = stage / info.value_stages;
      const int part = stage - pass * info.value_stages;
      const int first = pass * args_.pass_dims;
      const int count = Smaller(args_.pass_dims, args_.v_dim - first);
      if (args_.values_in_tiles != 0 && info.gathered == 0) {
        const int begin = part * info.value_step;
        CopyValueTiles(args_, info, task_.kv_head, first, count, begin,
                       Smaller(begin + info.value_step, info.slots), to);
      } else {
        const int begin = (info.begin & ~3) + part * info.value_step;
        CopyValueRows(args_, info, task_.kv_head, first, count, begin,
                      Smaller(begin + info.value_step, info.end), to);
      }
    }
  }

  const AttendArgs& args_;
  const AttendTask& task_;
  SplitInfo* infos_;
  std::uint8_t* memory_;
  int split_ = 0;   // of the next stage to copy
  int stage_ = 0;   // in it
  int copied_ = 0;  // the memory that it goes to
  int used_ = 0;    // the memory of the next stage to use
};

}  // namespace kvcache::cuda
