#include "backend/cuda/joined/joins.h"

#include <cstdint>
#include <cstring>

#include "backend/cuda/ops/elementwise_kernels.h"

namespace kvcache::cuda {
namespace {

using Held = JoinedDevice::Held;

constexpr Kernel kNorm{"joined_norm", kNormThreads};
constexpr Kernel kNorms[] = {{"joined_norm_16", kNormThreads},
                             {"joined_norm_32", kNormThreads},
                             {"joined_norm_256", kNormThreads}};
constexpr Kernel kGates[] = {{"joined_gate_16", linear::kQuantizeThreads},
                             {"joined_gate_32", linear::kQuantizeThreads},
                             {"joined_gate_256", linear::kQuantizeThreads}};
constexpr Kernel kStore{"joined_store", StoreArgs::kThreads};

template <class Args>
Args ArgsOf(std::span<const std::byte> bytes) {
  Args args;
  std::memcpy(&args, bytes.data(), sizeof(Args));
  return args;
}

// Which of the kernels above quantises as `part`.
std::size_t PlaceOf(KernelPart part) {
  return static_cast<std::size_t>(part) - static_cast<std::size_t>(KernelPart::kQuantize16);
}

// `rows` rows of `width` floats.
struct Rows {
  const float* first;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t width;

  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(first); }
  std::uintptr_t end() const {
    return begin() + static_cast<std::uintptr_t>((rows - 1) * stride + width) * sizeof(float);
  }
};

// Whether a block that has a row of one may write it while another block reads the rows of the other.
bool Apart(const Rows& a, const Rows& b) {
  return a.end() <= b.begin() || b.end() <= a.begin();
}
bool SameOrApart(const Rows& a, const Rows& b) {
  return (a.first == b.first && a.stride == b.stride) || Apart(a, b);
}

std::optional<JoinedNormLaunch> NormAlone(const Held& held) {
  JoinedNormLaunch joined{&kNorm, {}, sizeof(WideNormMemory), {}};
  NormArgs& norm = joined.args.norm;
  norm = held.As<NormArgs>();
  if (!norm.vectors || norm.width > kWideValues) return std::nullopt;
  joined.grid.x = norm.rows;
  joined.args.sum = const_cast<float*>(norm.x);
  const Rows x{norm.x, norm.x_stride, norm.rows, norm.width};
  const Rows y{norm.y, norm.y_stride, norm.rows, norm.width};
  if (!SameOrApart(x, y)) return std::nullopt;
  return joined;
}

// The only task of a quantisation, if all of it can follow rows of `width` values at x.
std::optional<linear::QuantizeTask> OnlyTask(std::span<const std::byte> bytes, const float* x) {
  const auto args = ArgsOf<linear::QuantizeArgs>(bytes);
  if (args.tasks.count != 1 || args.tasks.all != nullptr) return std::nullopt;
  if (args.tasks.here[0].x != x) return std::nullopt;
  return args.tasks.here[0];
}

// Whether the rotated values are those of heads that a side stores.
bool RotatesRowsOf(const RotateArgs& rotate, const StoreSide& side) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t into = reinterpret_cast<const std::byte*>(rotate.x) - side.rows;
  return into >= 0 && into + 2 * std::int64_t{rotate.pairs} * kFloat <= side.dim * kFloat &&
         rotate.token_stride * kFloat == side.token_bytes &&
         rotate.head_stride * kFloat == side.head_bytes;
}

// From the first to the last value, with what lies between.
Rows RangeOf(const RotateArgs& rotate, std::int64_t tokens) {
  return {rotate.x, rotate.token_stride, tokens,
          (rotate.heads - 1) * rotate.head_stride + 2 * std::int64_t{rotate.pairs}};
}
Rows RangeOf(const StoreSide& side, std::int64_t tokens, std::int64_t heads) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  return {reinterpret_cast<const float*>(side.rows), side.token_bytes / kFloat, tokens,
          (heads - 1) * (side.head_bytes / kFloat) + side.dim};
}

}  // namespace

bool BeginsJoin(KernelPart part) {
  return part == KernelPart::kAdd || part == KernelPart::kNorm || part == KernelPart::kGate ||
         part == KernelPart::kRotate;
}

bool IsQuantize(KernelPart part) {
  return part == KernelPart::kQuantize16 || part == KernelPart::kQuantize32 ||
         part == KernelPart::kQuantize256;
}

std::optional<JoinedNormLaunch> JoinAddAndNorm(const Held& add, const Held& norm) {
  if (add.kernel->part != KernelPart::kAdd || norm.kernel->part != KernelPart::kNorm) {
    return std::nullopt;
  }
  std::optional<JoinedNormLaunch> joined = NormAlone(norm);
  if (!joined.has_value()) return std::nullopt;
  const NormArgs& of = joined->args.norm;
  const Elements elements = add.As<ElementArgs<NoParams>>().elements;
  if (!elements.vectors || elements.x != of.x || of.x_stride != of.width ||
      elements.values != of.rows * of.width) {
    return std::nullopt;
  }
  const Rows x{of.x, of.x_stride, of.rows, of.width};
  const Rows y{of.y, of.y_stride, of.rows, of.width};
  const Rows added{elements.y, of.width, of.rows, of.width};
  if (!SameOrApart(added, y) || !SameOrApart(added, x)) return std::nullopt;
  joined->args.added = elements.y;
  return joined;
}

std::optional<JoinedNormLaunch> JoinNorm(std::span<const Held> held, KernelPart quantize,
                                         std::span<const std::byte> args) {
  if (held.empty() || held.back().kernel->part != KernelPart::kNorm) return std::nullopt;
  std::optional<JoinedNormLaunch> joined =
      held.size() == 2 ? JoinAddAndNorm(held[0], held[1]) : NormAlone(held[0]);
  if (!joined.has_value()) return std::nullopt;
  const NormArgs& norm = joined->args.norm;
  const std::optional<linear::QuantizeTask> task = OnlyTask(args, norm.y);
  if (!task.has_value() || task->inputs != norm.width || task->columns != norm.rows ||
      norm.y_stride != norm.width) {
    return std::nullopt;
  }
  joined->kernel = &kNorms[PlaceOf(quantize)];
  joined->args.to = *task;
  joined->grid.x = linear::TilesOf(task->columns) * linear::kTileColumns;
  return joined;
}

std::optional<JoinedGateLaunch> JoinGate(std::span<const Held> held, KernelPart quantize,
                                         const Grid& grid, std::span<const std::byte> args) {
  if (held.size() != 1 || held[0].kernel->part != KernelPart::kGate) return std::nullopt;
  const auto gate = held[0].As<ElementArgs<ActivationParams>>();
  const Elements& elements = gate.elements;
  const std::optional<linear::QuantizeTask> task = OnlyTask(args, elements.x);
  if (!task.has_value() || !elements.vectors || task->inputs % 8 != 0 ||
      elements.values != std::int64_t{task->inputs} * task->columns) {
    return std::nullopt;
  }
  const Rows x{elements.x, elements.values, 1, elements.values};
  const Rows up{elements.y, elements.values, 1, elements.values};
  if (!SameOrApart(x, up)) return std::nullopt;
  return JoinedGateLaunch{
      &kGates[PlaceOf(quantize)], grid, 0, {elements.x, elements.y, *task, gate.params.activation}};
}

std::optional<JoinedStoreLaunch> JoinStore(std::span<const Held> held, const Grid& grid,
                                           std::span<const std::byte> args,
                                           std::size_t shared_bytes) {
  if (held.size() != 2 || held[0].kernel->part != KernelPart::kRotate) return std::nullopt;
  JoinedStoreLaunch joined{&kStore, {grid.x, grid.y, 3}, shared_bytes, {}};
  JoinedStoreArgs& to = joined.args;
  to.store = ArgsOf<StoreArgs>(args);
  to.q = held[0].As<RotateArgs>();
  to.k = held[1].As<RotateArgs>();
  Grid q_grid = held[0].grid;
  Grid k_grid = held[1].grid;
  const StoreSide& keys = to.store.sides[0];
  if (!RotatesRowsOf(to.k, keys)) {
    std::swap(to.q, to.k);
    std::swap(q_grid, k_grid);
    if (!RotatesRowsOf(to.k, keys)) return std::nullopt;
  }
  if (grid.z != 2 || to.store.pieces.far != nullptr || to.k.heads != grid.y ||
      to.q.heads % to.k.heads != 0) {
    return std::nullopt;
  }
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < grid.x; ++i) tokens += to.store.pieces.near[i].count;
  if (q_grid.x != tokens * to.q.blocks || k_grid.x != tokens * to.k.blocks) return std::nullopt;
  const Rows q = RangeOf(to.q, tokens);
  const Rows k = RangeOf(keys, tokens, grid.y);
  const Rows v = RangeOf(to.store.sides[1], tokens, grid.y);
  if (!Apart(q, k) || !Apart(k, v) || !Apart(q, v)) return std::nullopt;
  to.group = to.q.heads / to.k.heads;
  return joined;
}

}  // namespace kvcache::cuda
