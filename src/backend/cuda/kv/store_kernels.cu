// Writes a batch's keys and values to cells: a block of threads for each piece of a tile and head.
#include "backend/cuda/kv/store-inl.h"

namespace kvcache::cuda {

// Blocks: (piece, head, side).
KVCACHE_KERNEL(kv_store, StoreArgs, StoreArgs::kThreads) {
  StoreRows(args.sides[BlockZ()], At(args.pieces, BlockX()), BlockY());
}

}  // namespace kvcache::cuda
