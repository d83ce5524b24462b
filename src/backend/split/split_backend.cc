#include "backend/split/split_backend.h"

#include <utility>

#include "backend/split/split_routing.h"
#include "backend/split/split_weight.h"
#include "base/errors.h"
#include "kvcache/split_backend.h"

namespace kvcache {

namespace {

// Makes a weight of the backend `side`.
Result<std::unique_ptr<LinearWeight>> MakeOn(Backend& backend, int side, const TensorView& w) {
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<LinearWeight> inner, backend.MakeLinear(w));
  std::unique_ptr<LinearWeight> weight;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a weight", [&] {
    weight = std::make_unique<SplitWeight>(std::move(inner), side);
  }));
  return weight;
}

}  // namespace

Status SplitBackend::EnterLayer(int layer, const TensorView& live) {
  return sides_.Enter(layer, live);
}

// ---- Memory

CacheConfig SplitBackend::preferred_cache_config() const {
  return sides_.on(0).preferred_cache_config();
}

Status SplitBackend::CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const {
  KVCACHE_RETURN_IF_ERROR(sides_.on(0).CheckKvTypes(k_type, v_type, layout));
  return sides_.on(1).CheckKvTypes(k_type, v_type, layout);
}

Result<std::unique_ptr<Buffer>> SplitBackend::Allocate(std::size_t size_bytes) {
  return sides_.memory().AllocateInBoth(size_bytes);
}

Result<std::unique_ptr<Buffer>> SplitBackend::AllocateForLayer(int layer, std::size_t size_bytes) {
  return sides_.memory().AllocateIn(sides_.SideOfLayer(layer), size_bytes);
}

Status SplitBackend::CopyValues(const TensorView& from, const TensorView& to) {
  const int owner = sides_.memory().OwnerOf(from.data);
  const int side = owner == SplitMemory::kBoth ? sides_.SideOf(to.data) : owner;
  return sides_.With(
      side, [](Backend& b, auto& f, auto& t) { return b.CopyValues(f, t); }, from, to);
}

Status SplitBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  return sides_.With(
      sides_.SideOf(from.data), [&](Backend& b, auto& f) { return b.CopyToHost(f, to); }, from);
}

Status SplitBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  return sides_.With(
      sides_.SideOf(to.data), [&](Backend& b, auto& t) { return b.CopyFromHost(from, t); }, to);
}

// ---- Cells, which belong to one backend, or to the scratch of a layer

Status SplitBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  const int side = sides_.SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own, side));
  return sides_.on(side).CopyCells(own, moves);
}

Status SplitBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                   std::span<const CellMove> moves) {
  const int side = sides_.SideOf(from.on_host ? to.k : from.k);
  LayerKv own_from = from;
  LayerKv own_to = to;
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own_from, side));
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own_to, side));
  return sides_.on(side).TransferCells(own_from, own_to, moves);
}

Status SplitBackend::ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells,
                               Position offset, const RopeParams& rope) {
  const int side = sides_.SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own, side));
  return sides_.on(side).ShiftKeys(own, cells, offset, rope);
}

Status SplitBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                             std::span<const CellRun> cells) {
  const int side = sides_.SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own, side));
  return sides_.With(
      side,
      [&](Backend& b, auto& own_k, auto& own_v) { return b.StoreKv(own, own_k, own_v, cells); }, k,
      v);
}

// A layer may read the cells of another one, which the other backend has: the queries go there, and the results
// come back.
Status SplitBackend::Attention(const LayerKv& layer, const TensorView& q,
                               const Visibility& visibility, const AttentionOptions& options,
                               const TensorView& out) {
  const int side = layer.k == nullptr ? sides_.side() : sides_.SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own, side));
  if (side != sides_.side()) KVCACHE_RETURN_IF_ERROR(sides_.Bring(q, sides_.side(), side));
  KVCACHE_RETURN_IF_ERROR(sides_.With(
      side,
      [&](Backend& b, auto& own_q, auto& own_out) {
        return b.Attention(own, own_q, visibility, options, own_out);
      },
      q, out));
  return side == sides_.side() ? Status::Ok() : sides_.Bring(out, side, sides_.side());
}

// ---- Weights, which belong to one backend

Result<std::unique_ptr<LinearWeight>> SplitBackend::MakeLinear(const TensorView& w) {
  return MakeOn(sides_.here(), sides_.side(), w);
}

Result<std::unique_ptr<LinearWeight>> SplitBackend::MakeLinearBeside(const LinearWeight& base,
                                                                     const TensorView& w) {
  const int side = static_cast<const SplitWeight&>(base).side();
  return MakeOn(sides_.on(side), side, w);
}

Status SplitBackend::Linear(const TensorView& x, std::span<const LinearOutput> outputs) {
  const LinearGroup group{x, outputs};
  return LinearGroups({&group, 1});
}

Status SplitBackend::LinearGroups(std::span<const LinearGroup> groups) {
  std::size_t count = 0;
  for (const LinearGroup& group : groups) count += group.outputs.size();
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a list of products", [&] {
    outputs_.clear();
    outputs_.reserve(count);  // groups refer to its elements
    groups_.clear();
    groups_.reserve(groups.size());
  }));
  for (const LinearGroup& group : groups) {
    LinearGroup own{group.x, {}};
    KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(own.x, sides_.side()));
    for (LinearOutput output : group.outputs) {
      const auto& weight = static_cast<const SplitWeight&>(*output.weight);
      if (weight.side() != sides_.side()) {
        return {StatusCode::kInternal, "a weight is multiplied where another backend's layer is"};
      }
      output.weight = weight.inner();
      KVCACHE_RETURN_IF_ERROR(sides_.memory().Translate(output.y, sides_.side()));
      outputs_.push_back(output);
    }
    own.outputs = std::span(outputs_).last(group.outputs.size());
    groups_.push_back(own);
  }
  return sides_.here().LinearGroups(groups_);
}

// ---- Operations on activations

Status SplitBackend::Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                           const TensorView& y) {
  // Asks whether the table's type is served; the table may be the host's.
  if (tokens.empty()) return sides_.here().Embed(table, tokens, y);
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& t, auto& own) { return b.Embed(t, tokens, own); }, table,
      y);
}

Status SplitBackend::RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                             const TensorView& y) {
  return sides_.With(
      sides_.side(),
      [&](Backend& b, auto& a, auto& w, auto& to) { return b.RmsNorm(a, w, epsilon, to); }, x,
      weight, y);
}

Status SplitBackend::Center(const TensorView& x, const TensorView& y) {
  return sides_.With(
      sides_.side(), [](Backend& b, auto& a, auto& to) { return b.Center(a, to); }, x, y);
}

Status SplitBackend::Rope(const TensorView& x, std::span<const Position> positions,
                          const RopeParams& rope) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.Rope(a, positions, rope); }, x);
}

Status SplitBackend::Gate(const TensorView& gate, const TensorView& up, Activation activation) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& g, auto& u) { return b.Gate(g, u, activation); }, gate,
      up);
}

Status SplitBackend::GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                                 float limit) {
  return sides_.With(
      sides_.side(),
      [&](Backend& b, auto& g, auto& u) { return b.GateClamped(g, u, alpha, limit); }, gate, up);
}

Status SplitBackend::Activate(const TensorView& x, Activation activation) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.Activate(a, activation); }, x);
}

Status SplitBackend::Xielu(const TensorView& x, const XieluParams& params) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.Xielu(a, params); }, x);
}

Status SplitBackend::Scale(const TensorView& x, float factor) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.Scale(a, factor); }, x);
}

Status SplitBackend::SoftCap(const TensorView& x, float cap) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.SoftCap(a, cap); }, x);
}

Status SplitBackend::Add(const TensorView& x, const TensorView& y) {
  return sides_.With(
      sides_.side(), [](Backend& b, auto& a, auto& c) { return b.Add(a, c); }, x, y);
}

Status SplitBackend::Multiply(const TensorView& x, const TensorView& y) {
  return sides_.With(
      sides_.side(), [](Backend& b, auto& a, auto& c) { return b.Multiply(a, c); }, x, y);
}

Status SplitBackend::AddBias(const TensorView& x, const TensorView& bias) {
  return sides_.With(
      sides_.side(), [](Backend& b, auto& a, auto& c) { return b.AddBias(a, c); }, x, bias);
}

Status SplitBackend::ScaleColumns(const TensorView& x, std::span<const float> factors) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& a) { return b.ScaleColumns(a, factors); }, x);
}

Status SplitBackend::Route(const TensorView& logits, const RouterOptions& options,
                           std::span<std::int32_t> experts, std::span<float> weights) {
  return sides_.With(
      sides_.side(), [&](Backend& b, auto& l) { return b.Route(l, options, experts, weights); },
      logits);
}

Status SplitBackend::Combine(const TensorView& y, std::span<const std::int32_t> columns,
                             std::span<const float> weights, const TensorView& out) {
  return sides_.With(
      sides_.side(),
      [&](Backend& b, auto& a, auto& to) { return b.Combine(a, columns, weights, to); }, y, out);
}

Result<std::unique_ptr<ExpertRouting>> SplitBackend::MakeRouting(const RoutingSizes& sizes) {
  SplitRouting::Parts parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(parts[i], sides_.on(static_cast<int>(i)).MakeRouting(sizes));
  }
  if (parts[0] == nullptr && parts[1] == nullptr) return std::unique_ptr<ExpertRouting>();
  return SplitRouting::Make(*this, sides_.memory(), sides_.side(), std::move(parts), sizes);
}

// ---- Recurrent layers

Status SplitBackend::ShortConv(const TensorView& x, const ConvTaps& taps,
                               const StateSegments& inputs, const TensorView& y) {
  const int side = sides_.SideOf(sides_.memory().StateOf(inputs));
  KVCACHE_ASSIGN_OR_RETURN(const StateSegments states, sides_.memory().Translate(inputs, side));
  return sides_.With(
      side,
      [&](Backend& b, auto& a, auto& t, auto& bias, auto& to) {
        ConvTaps own{t, {}};
        if (taps.bias.has_value()) own.bias = bias;
        return b.ShortConv(a, own, states, to);
      },
      x, taps.taps, taps.bias.value_or(TensorView{}), y);
}

Status SplitBackend::DecayRates(const TensorView& raw, const TensorView& bias,
                                const TensorView& rates, const TensorView& steps,
                                const TensorView& decays) {
  return sides_.With(
      sides_.side(),
      [](Backend& b, auto& r, auto& c, auto& a, auto& s, auto& d) {
        return b.DecayRates(r, c, a, s, d);
      },
      raw, bias, rates, steps, decays);
}

Status SplitBackend::StateScan(const ScanInputs& inputs, const ScanOptions& options,
                               const StateSegments& states, const TensorView& out) {
  const int side = sides_.SideOf(sides_.memory().StateOf(states));
  KVCACHE_ASSIGN_OR_RETURN(const StateSegments own, sides_.memory().Translate(states, side));
  return sides_.With(
      side,
      [&](Backend& b, auto& k, auto& q, auto& v, auto& d, auto& s, auto& to) {
        return b.StateScan({k, q, v, d, s}, options, own, to);
      },
      inputs.keys, inputs.queries, inputs.values, inputs.decays, inputs.steps, out);
}

std::unique_ptr<Backend> MakeSplitBackend(std::unique_ptr<Backend> first,
                                          std::unique_ptr<Backend> second, int boundary) {
  return std::make_unique<SplitBackend>(std::move(first), std::move(second), boundary);
}

}  // namespace kvcache
