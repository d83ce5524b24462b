#include "backend/cuda/cuda_backend.h"

#include "backend/cpu/kv/kv_check.h"
#include "backend/cuda/kv/copy.h"
#include "backend/cuda/kv/shift.h"
#include "backend/cuda/kv/store.h"
#include "backend/cuda/kv/values.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/ops/elementwise.h"
#include "backend/cuda/ops/expert_routing.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/norms.h"
#include "backend/cuda/ops/recurrence.h"

namespace kvcache::cuda {

CacheConfig CudaBackend::preferred_cache_config() const {
  return CacheConfig{.layout = KvLayout::kTiled, .cell_padding = kCellTile};
}

// Both backends serve the same types.
Status CudaBackend::CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const {
  return cpu::CheckKvTypes(k_type, v_type, layout);
}

Result<std::unique_ptr<Buffer>> CudaBackend::Allocate(std::size_t size_bytes) {
  return device_->Allocate(size_bytes);
}

Status CudaBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                            std::span<const CellRun> cells) {
  return cuda::StoreKv(*device_, Begin(), layer, k, v, cells);
}

Status CudaBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  return cuda::CopyCells(*device_, Begin(), layer, moves);
}

Status CudaBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                  std::span<const CellMove> moves) {
  return cuda::TransferCells(*device_, Begin(), from, to, moves);
}

Status CudaBackend::CopyValues(const TensorView& from, const TensorView& to) {
  return cuda::CopyValues(*device_, from, to);
}

Status CudaBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  return cuda::CopyToHost(*device_, Begin(), from, to);
}

Status CudaBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  return cuda::CopyFromHost(*device_, Begin(), from, to);
}

Status CudaBackend::ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                              const RopeParams& rope) {
  return cuda::ShiftKeys(*device_, Begin(), layer, cells, offset, rope);
}

Status CudaBackend::Attention(const LayerKv& layer, const TensorView& q,
                              const Visibility& visibility, const AttentionOptions& options,
                              const TensorView& out) {
  return cuda::Attention(*device_, Begin(), attention_plans_, layer, q, visibility, options, out);
}

Result<std::unique_ptr<LinearWeight>> CudaBackend::MakeLinear(const TensorView& w) {
  return cuda::MakeLinear(*device_, w);
}

Status CudaBackend::Linear(const TensorView& x, std::span<const LinearOutput> outputs) {
  const LinearGroup group{x, outputs};
  return cuda::LinearGroups(*device_, Begin(), {&group, 1});
}

Status CudaBackend::LinearGroups(std::span<const LinearGroup> groups) {
  return cuda::LinearGroups(*device_, Begin(), groups);
}

Status CudaBackend::Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                          const TensorView& y) {
  return cuda::Embed(*device_, Begin(), table, tokens, y);
}

Status CudaBackend::RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                            const TensorView& y) {
  return cuda::RmsNorm(*device_, x, weight, epsilon, y);
}

Status CudaBackend::Center(const TensorView& x, const TensorView& y) {
  return cuda::Center(*device_, x, y);
}

Status CudaBackend::Rope(const TensorView& x, std::span<const Position> positions,
                         const RopeParams& rope) {
  return cuda::Rope(*device_, Begin(), rope_tables_, x, positions, rope);
}

Status CudaBackend::Gate(const TensorView& gate, const TensorView& up, Activation activation) {
  return cuda::Gate(*device_, gate, up, activation);
}

Status CudaBackend::GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                                float limit) {
  return cuda::GateClamped(*device_, gate, up, alpha, limit);
}

Status CudaBackend::Activate(const TensorView& x, Activation activation) {
  return cuda::Activate(*device_, x, activation);
}

Status CudaBackend::Xielu(const TensorView& x, const XieluParams& params) {
  return cuda::Xielu(*device_, x, params);
}

Status CudaBackend::Scale(const TensorView& x, float factor) {
  return cuda::Scale(*device_, x, factor);
}

Status CudaBackend::SoftCap(const TensorView& x, float cap) {
  return cuda::SoftCap(*device_, x, cap);
}

Status CudaBackend::Add(const TensorView& x, const TensorView& y) {
  return cuda::Add(*device_, x, y);
}

Status CudaBackend::Multiply(const TensorView& x, const TensorView& y) {
  return cuda::Multiply(*device_, x, y);
}

Status CudaBackend::AddBias(const TensorView& x, const TensorView& bias) {
  return cuda::AddBias(*device_, x, bias);
}

Status CudaBackend::ScaleColumns(const TensorView& x, std::span<const float> factors) {
  return cuda::ScaleColumns(*device_, Begin(), x, factors);
}

Status CudaBackend::Route(const TensorView& logits, const RouterOptions& options,
                          std::span<std::int32_t> experts, std::span<float> weights) {
  return cuda::Route(*device_, Begin(), logits, options, experts, weights);
}

Status CudaBackend::Combine(const TensorView& y, std::span<const std::int32_t> columns,
                            std::span<const float> weights, const TensorView& out) {
  return cuda::Combine(*device_, Begin(), y, columns, weights, out);
}

Result<std::unique_ptr<ExpertRouting>> CudaBackend::MakeRouting(const RoutingSizes& sizes) {
  return CudaRouting::Make(*device_, memory_, sizes);
}

Status CudaBackend::ShortConv(const TensorView& x, const ConvTaps& taps,
                              const StateSegments& inputs, const TensorView& y) {
  return cuda::ShortConv(*device_, Begin(), x, taps, inputs, y);
}

Status CudaBackend::DecayRates(const TensorView& raw, const TensorView& bias,
                               const TensorView& rates, const TensorView& steps,
                               const TensorView& decays) {
  return cuda::DecayRates(*device_, raw, bias, rates, steps, decays);
}

Status CudaBackend::StateScan(const ScanInputs& inputs, const ScanOptions& options,
                              const StateSegments& states, const TensorView& out) {
  return cuda::StateScan(*device_, Begin(), inputs, options, states, out);
}

}  // namespace kvcache::cuda
