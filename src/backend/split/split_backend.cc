#include "backend/split/split_backend.h"

#include <tuple>
#include <utility>

#include "backend/split/split_routing.h"
#include "backend/split/split_weight.h"
#include "base/errors.h"
#include "kvcache/split_backend.h"

namespace kvcache {

SplitBackend::SplitBackend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second,
                           int boundary)
    : sides_{std::move(first), std::move(second)},
      memory_(*sides_[0], *sides_[1]),
      boundary_(boundary) {}

// ---- Which backend, and with which addresses

int SplitBackend::SideOf(const std::byte* address) const {
  const int owner = memory_.OwnerOf(address);
  return owner == SplitMemory::kBoth ? side_ : owner;
}

template <class F, class... Views>
Status SplitBackend::With(int side, F&& f, const Views&... views) {
  std::array<TensorView, sizeof...(views)> own{views...};
  for (TensorView& view : own) KVCACHE_RETURN_IF_ERROR(memory_.Translate(view, side));
  return std::apply([&](const auto&... each) { return f(on(side), each...); }, own);
}

Status SplitBackend::Bring(const TensorView& view, int from, int to) {
  const auto bytes = static_cast<std::size_t>(BytesOf(view.dtype, view.elements()));
  if (view.data == nullptr || bytes == 0) return Status::Ok();
  if (staging_.size() < bytes) {
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory to bring activations to another machine",
                                    [&] { staging_.resize(bytes); }));
  }
  const std::span<std::byte> host = std::span(staging_).first(bytes);
  TensorView source = view;
  TensorView target = view;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(source, from));
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(target, to));
  KVCACHE_RETURN_IF_ERROR(on(from).CopyToHost(source, host));
  return on(to).CopyFromHost(host, target);
}

Status SplitBackend::EnterLayer(int layer, const TensorView& live) {
  const int side = layer < boundary_ ? 0 : 1;
  if (side == side_) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(Bring(live, side_, side));
  side_ = side;
  return Status::Ok();
}

// ---- Memory

CacheConfig SplitBackend::preferred_cache_config() const {
  return sides_[0]->preferred_cache_config();
}

Status SplitBackend::CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const {
  KVCACHE_RETURN_IF_ERROR(sides_[0]->CheckKvTypes(k_type, v_type, layout));
  return sides_[1]->CheckKvTypes(k_type, v_type, layout);
}

Result<std::unique_ptr<Buffer>> SplitBackend::Allocate(std::size_t size_bytes) {
  return memory_.AllocateInBoth(size_bytes);
}

Result<std::unique_ptr<Buffer>> SplitBackend::AllocateForLayer(int layer, std::size_t size_bytes) {
  return memory_.AllocateIn(layer < boundary_ ? 0 : 1, size_bytes);
}

Status SplitBackend::CopyValues(const TensorView& from, const TensorView& to) {
  const int owner = memory_.OwnerOf(from.data);
  const int side = owner == SplitMemory::kBoth ? SideOf(to.data) : owner;
  return With(
      side, [](Backend& b, auto& f, auto& t) { return b.CopyValues(f, t); }, from, to);
}

Status SplitBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  return With(
      SideOf(from.data), [&](Backend& b, auto& f) { return b.CopyToHost(f, to); }, from);
}

Status SplitBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  return With(
      SideOf(to.data), [&](Backend& b, auto& t) { return b.CopyFromHost(from, t); }, to);
}

// ---- Cells, which belong to one backend, or to the scratch of a layer

Status SplitBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  const int side = SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own, side));
  return on(side).CopyCells(own, moves);
}

Status SplitBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                   std::span<const CellMove> moves) {
  const int side = SideOf(from.on_host ? to.k : from.k);
  LayerKv own_from = from;
  LayerKv own_to = to;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own_from, side));
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own_to, side));
  return on(side).TransferCells(own_from, own_to, moves);
}

Status SplitBackend::ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells,
                               Position offset, const RopeParams& rope) {
  const int side = SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own, side));
  return on(side).ShiftKeys(own, cells, offset, rope);
}

Status SplitBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                             std::span<const CellRun> cells) {
  const int side = SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own, side));
  return With(
      side,
      [&](Backend& b, auto& own_k, auto& own_v) { return b.StoreKv(own, own_k, own_v, cells); }, k,
      v);
}

// A layer may read the cells of another one, which the other backend has: the queries go there, and the results
// come back.
Status SplitBackend::Attention(const LayerKv& layer, const TensorView& q,
                               const Visibility& visibility, const AttentionOptions& options,
                               const TensorView& out) {
  const int side = layer.k == nullptr ? side_ : SideOf(layer.k);
  LayerKv own = layer;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(own, side));
  if (side != side_) KVCACHE_RETURN_IF_ERROR(Bring(q, side_, side));
  KVCACHE_RETURN_IF_ERROR(With(
      side,
      [&](Backend& b, auto& own_q, auto& own_out) {
        return b.Attention(own, own_q, visibility, options, own_out);
      },
      q, out));
  return side == side_ ? Status::Ok() : Bring(out, side, side_);
}

// ---- Weights, which belong to one backend

Result<std::unique_ptr<LinearWeight>> SplitBackend::MakeLinear(const TensorView& w) {
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<LinearWeight> inner, here().MakeLinear(w));
  std::unique_ptr<LinearWeight> weight;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a weight", [&] {
    weight = std::make_unique<SplitWeight>(std::move(inner), side_);
  }));
  return weight;
}

Result<std::unique_ptr<LinearWeight>> SplitBackend::MakeLinearBeside(const LinearWeight& base,
                                                                     const TensorView& w) {
  const int side = static_cast<const SplitWeight&>(base).side();
  const int before = std::exchange(side_, side);
  auto made = MakeLinear(w);
  side_ = before;
  return made;
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
    KVCACHE_RETURN_IF_ERROR(memory_.Translate(own.x, side_));
    for (LinearOutput output : group.outputs) {
      const auto& weight = static_cast<const SplitWeight&>(*output.weight);
      if (weight.side() != side_) {
        return {StatusCode::kInternal, "a weight is multiplied where another backend's layer is"};
      }
      output.weight = weight.inner();
      KVCACHE_RETURN_IF_ERROR(memory_.Translate(output.y, side_));
      outputs_.push_back(output);
    }
    own.outputs = std::span(outputs_).last(group.outputs.size());
    groups_.push_back(own);
  }
  return here().LinearGroups(groups_);
}

// ---- Operations on activations

Status SplitBackend::Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                           const TensorView& y) {
  // Asks whether the table's type is served; the table may be the host's.
  if (tokens.empty()) return here().Embed(table, tokens, y);
  return With(
      side_, [&](Backend& b, auto& t, auto& own) { return b.Embed(t, tokens, own); }, table, y);
}

Status SplitBackend::RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                             const TensorView& y) {
  return With(
      side_, [&](Backend& b, auto& a, auto& w, auto& to) { return b.RmsNorm(a, w, epsilon, to); },
      x, weight, y);
}

Status SplitBackend::Center(const TensorView& x, const TensorView& y) {
  return With(
      side_, [](Backend& b, auto& a, auto& to) { return b.Center(a, to); }, x, y);
}

Status SplitBackend::Rope(const TensorView& x, std::span<const Position> positions,
                          const RopeParams& rope) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.Rope(a, positions, rope); }, x);
}

Status SplitBackend::Gate(const TensorView& gate, const TensorView& up, Activation activation) {
  return With(
      side_, [&](Backend& b, auto& g, auto& u) { return b.Gate(g, u, activation); }, gate, up);
}

Status SplitBackend::GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                                 float limit) {
  return With(
      side_, [&](Backend& b, auto& g, auto& u) { return b.GateClamped(g, u, alpha, limit); }, gate,
      up);
}

Status SplitBackend::Activate(const TensorView& x, Activation activation) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.Activate(a, activation); }, x);
}

Status SplitBackend::Xielu(const TensorView& x, const XieluParams& params) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.Xielu(a, params); }, x);
}

Status SplitBackend::Scale(const TensorView& x, float factor) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.Scale(a, factor); }, x);
}

Status SplitBackend::SoftCap(const TensorView& x, float cap) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.SoftCap(a, cap); }, x);
}

Status SplitBackend::Add(const TensorView& x, const TensorView& y) {
  return With(
      side_, [](Backend& b, auto& a, auto& c) { return b.Add(a, c); }, x, y);
}

Status SplitBackend::Multiply(const TensorView& x, const TensorView& y) {
  return With(
      side_, [](Backend& b, auto& a, auto& c) { return b.Multiply(a, c); }, x, y);
}

Status SplitBackend::AddBias(const TensorView& x, const TensorView& bias) {
  return With(
      side_, [](Backend& b, auto& a, auto& c) { return b.AddBias(a, c); }, x, bias);
}

Status SplitBackend::ScaleColumns(const TensorView& x, std::span<const float> factors) {
  return With(
      side_, [&](Backend& b, auto& a) { return b.ScaleColumns(a, factors); }, x);
}

Status SplitBackend::Route(const TensorView& logits, const RouterOptions& options,
                           std::span<std::int32_t> experts, std::span<float> weights) {
  return With(
      side_, [&](Backend& b, auto& l) { return b.Route(l, options, experts, weights); }, logits);
}

Status SplitBackend::Combine(const TensorView& y, std::span<const std::int32_t> columns,
                             std::span<const float> weights, const TensorView& out) {
  return With(
      side_, [&](Backend& b, auto& a, auto& to) { return b.Combine(a, columns, weights, to); }, y,
      out);
}

Result<std::unique_ptr<ExpertRouting>> SplitBackend::MakeRouting(const RoutingSizes& sizes) {
  SplitRouting::Parts parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(parts[i], sides_[i]->MakeRouting(sizes));
  }
  if (parts[0] == nullptr && parts[1] == nullptr) return std::unique_ptr<ExpertRouting>();
  return SplitRouting::Make(*this, memory_, side_, std::move(parts), sizes);
}

// ---- Recurrent layers

Status SplitBackend::ShortConv(const TensorView& x, const ConvTaps& taps,
                               const StateSegments& inputs, const TensorView& y) {
  const int side = SideOf(memory_.StateOf(inputs));
  KVCACHE_ASSIGN_OR_RETURN(const StateSegments states, memory_.Translate(inputs, side));
  return With(
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
  return With(
      side_,
      [](Backend& b, auto& r, auto& c, auto& a, auto& s, auto& d) {
        return b.DecayRates(r, c, a, s, d);
      },
      raw, bias, rates, steps, decays);
}

Status SplitBackend::StateScan(const ScanInputs& inputs, const ScanOptions& options,
                               const StateSegments& states, const TensorView& out) {
  const int side = SideOf(memory_.StateOf(states));
  KVCACHE_ASSIGN_OR_RETURN(const StateSegments own, memory_.Translate(states, side));
  return With(
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
