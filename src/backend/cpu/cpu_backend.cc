#include "backend/cpu/cpu_backend.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cpu/kv/kv_release.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/pack_weight.h"
#include "backend/cpu/numa/on_nodes.h"
#include "backend/cpu/ops/copy_values.h"
#include "backend/cpu/ops/elementwise.h"
#include "backend/cpu/ops/experts.h"
#include "backend/cpu/ops/recurrence.h"
#include "kvcache/cpu_backend.h"
#include "platform/aligned_buffer.h"
#include "platform/processors.h"

namespace kvcache {
namespace cpu {
namespace {

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(AlignedBuffer memory) : memory_(std::move(memory)) {}
  std::byte* data() override { return memory_.data(); }
  std::size_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  AlignedBuffer memory_;
};

Result<std::unique_ptr<Buffer>> BufferOf(Result<AlignedBuffer> memory) {
  if (!memory.ok()) return std::move(memory).TakeStatus();
  std::unique_ptr<Buffer> buffer(new (std::nothrow) HostBuffer(std::move(memory).value()));
  if (buffer == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for a buffer");
  return buffer;
}

// Returns dense values at `data`, of the type and the sizes of `view`.
TensorView DenseLike(const TensorView& view, const void* data) {
  const auto& [d0, d1, d2, d3] = view.dims;
  return TensorView::Dense(data, view.dtype, d0, d1, d2, d3);
}

}  // namespace

CacheConfig CpuBackend::preferred_cache_config() const {
  return CacheConfig{.layout = KvLayout::kTiled, .cell_padding = kCellTile};
}

Status CpuBackend::CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const {
  return cpu::CheckKvTypes(k_type, v_type, layout);
}

Result<std::unique_ptr<Buffer>> CpuBackend::Allocate(std::size_t size_bytes) {
  return BufferOf(AlignedBuffer::Make(size_bytes));
}

Result<std::unique_ptr<Buffer>> CpuBackend::AllocateCells(std::size_t size_bytes) {
  return BufferOf(AlignedBuffer::MakePaged(size_bytes));
}

std::int64_t CpuBackend::ReleasableCells(const LayerKv& layer) const {
  return cpu::ReleasableCells(layer);
}

Status CpuBackend::ReleaseCells(const LayerKv& layer, const CellRun& run) {
  return cpu::ReleaseCells(layer, run);
}

Status CpuBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                           std::span<const CellRun> cells) {
  return cpu::StoreKv(pool_, workspace_, layer, k, v, cells);
}

Status CpuBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  return cpu::CopyCells(pool_, layer, moves);
}

Status CpuBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                 std::span<const CellMove> moves) {
  return cpu::TransferCells(pool_, from, to, moves);
}

Status CpuBackend::CopyValues(const TensorView& from, const TensorView& to) {
  return cpu::CopyValues(pool_, from, to);
}

// The processor's memory is the host's. Blocks are copied as bytes.
Status CpuBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  if (InfoOf(from.dtype).block_size > 1) {
    std::memcpy(to.data(), from.data, to.size());
    return Status::Ok();
  }
  return cpu::CopyValues(pool_, from, DenseLike(from, to.data()));
}

Status CpuBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  if (InfoOf(to.dtype).block_size > 1) {
    std::memcpy(to.data, from.data(), from.size());
    return Status::Ok();
  }
  return cpu::CopyValues(pool_, DenseLike(to, from.data()), to);
}

Status CpuBackend::ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                             const RopeParams& rope) {
  return cpu::ShiftKeys(pool_, workspace_, layer, cells, offset, rope);
}

Status CpuBackend::Attention(const LayerKv& layer, const TensorView& q,
                             const Visibility& visibility, const AttentionOptions& options,
                             const TensorView& out) {
  return cpu::Attention(pool_, workspace_, attention_plans_, layer, q, visibility, options, out);
}

std::uint32_t CpuBackend::panel_layout() const {
  return kPanelLayout;
}

Result<std::unique_ptr<LinearWeight>> CpuBackend::MakeLinear(const TensorView& w) {
  return cpu::MakeLinear(pool_, weight_memory_, w, panels_);
}

Status CpuBackend::Linear(const TensorView& x, std::span<const LinearOutput> outputs) {
  const LinearGroup group{x, outputs};
  return cpu::LinearGroups(pool_, workspace_, {&group, 1});
}

Status CpuBackend::LinearGroups(std::span<const LinearGroup> groups) {
  return cpu::LinearGroups(pool_, workspace_, groups);
}

Status CpuBackend::Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                         const TensorView& y) {
  return cpu::Embed(pool_, table, tokens, y);
}

Status CpuBackend::RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                           const TensorView& y) {
  return cpu::RmsNorm(pool_, x, weight, epsilon, y);
}

Status CpuBackend::Center(const TensorView& x, const TensorView& y) {
  return cpu::Center(pool_, x, y);
}

Status CpuBackend::Xielu(const TensorView& x, const XieluParams& params) {
  return cpu::Xielu(pool_, x, params);
}

Status CpuBackend::Rope(const TensorView& x, std::span<const Position> positions,
                        const RopeParams& rope) {
  return cpu::Rope(pool_, rope_tables_, x, positions, rope);
}

Status CpuBackend::Gate(const TensorView& gate, const TensorView& up, Activation activation) {
  return cpu::Gate(pool_, gate, up, activation);
}

Status CpuBackend::GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                               float limit) {
  return cpu::GateClamped(pool_, gate, up, alpha, limit);
}

Status CpuBackend::Activate(const TensorView& x, Activation activation) {
  return cpu::Activate(pool_, x, activation);
}

Status CpuBackend::Scale(const TensorView& x, float factor) {
  return cpu::Scale(pool_, x, factor);
}

Status CpuBackend::SoftCap(const TensorView& x, float cap) {
  return cpu::SoftCap(pool_, x, cap);
}

Status CpuBackend::Add(const TensorView& x, const TensorView& y) {
  return cpu::Add(pool_, x, y);
}

Status CpuBackend::Multiply(const TensorView& x, const TensorView& y) {
  return cpu::Multiply(pool_, x, y);
}

Status CpuBackend::AddBias(const TensorView& x, const TensorView& bias) {
  return cpu::AddBias(pool_, x, bias);
}

Status CpuBackend::ScaleColumns(const TensorView& x, std::span<const float> factors) {
  return cpu::ScaleColumns(pool_, x, factors);
}

Status CpuBackend::Route(const TensorView& logits, const RouterOptions& options,
                         std::span<std::int32_t> experts, std::span<float> weights) {
  return cpu::Route(pool_, logits, options, experts, weights);
}

Status CpuBackend::Combine(const TensorView& y, std::span<const std::int32_t> columns,
                           std::span<const float> weights, const TensorView& out) {
  return cpu::Combine(pool_, y, columns, weights, out);
}

Status CpuBackend::ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                             const TensorView& y) {
  return cpu::ShortConv(pool_, x, taps, inputs, y);
}

Status CpuBackend::DecayRates(const TensorView& raw, const TensorView& bias,
                              const TensorView& rates, const TensorView& steps,
                              const TensorView& decays) {
  return cpu::DecayRates(pool_, raw, bias, rates, steps, decays);
}

Status CpuBackend::StateScan(const ScanInputs& inputs, const ScanOptions& options,
                             const StateSegments& states, const TensorView& out) {
  return cpu::StateScan(pool_, inputs, options, states, out);
}

}  // namespace cpu

Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options) {
  constexpr int kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return Status(StatusCode::kInvalidArgument, "threads is " + std::to_string(options.threads) +
                                                    ", must be 0 (all) to " +
                                                    std::to_string(kMaxThreads));
  }
  KVCACHE_RETURN_IF_ERROR(cpu::UseCpuTargetFromEnvironment());
  const int threads =
      options.threads == 0 ? FindProcessorLimits().DefaultThreads() : options.threads;
  std::vector<MemoryNode> nodes;
  if (options.uses_numa) nodes = FindMemoryNodes(AllowedProcessors());
  auto backend = cpu::MakeOnNodes(threads, nodes, MachineNuma());
  if (options.threads > 0 && backend->threads() < threads) {
    return Status(StatusCode::kOutOfMemory,
                  "the system allows " + std::to_string(backend->threads()) + " of " +
                      std::to_string(threads) + " threads: ask for fewer");
  }
  return std::unique_ptr<Backend>(std::move(backend));
}

std::string CpuPlacement(const Backend& backend) {
  const auto* const cpu = dynamic_cast<const cpu::CpuBackend*>(&backend);
  return cpu == nullptr ? std::string() : cpu->placement();
}

}  // namespace kvcache
