// Quantises the inputs of block-quantised weights.
#include "backend/cuda/linear/quantize-inl.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {
namespace {

// Warps take the columns of a chunk, whole tiles of them.
template <int kSteps>
KVCACHE_DEVICE void Quantize(const QuantizeArgs& args) {
  const QuantizeTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int columns = static_cast<int>(TilesOf(task.columns)) * kTileColumns;
  const int index = (BlockX() - task.first_block) * kQuantizeWarps + Warp();
  const int chunk = index / columns;
  if (chunk * 256 >= task.inputs) return;
  const int column = index % columns;
  float x[kLaneInputs];
  LoadInputs(task, chunk, column, x);
  QuantizeChunk<kSteps>(task, chunk, column, x);
}

}  // namespace

KVCACHE_KERNEL(linear_quantize_16, QuantizeArgs, kQuantizeThreads) {
  Quantize<1>(args);
}
KVCACHE_KERNEL(linear_quantize_32, QuantizeArgs, kQuantizeThreads) {
  Quantize<2>(args);
}
KVCACHE_KERNEL(linear_quantize_256, QuantizeArgs, kQuantizeThreads) {
  Quantize<5>(args);
}

}  // namespace kvcache::cuda::linear
