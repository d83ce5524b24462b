#include "backend/split/split_routing.h"

#include <tuple>
#include <utility>

#include "backend/split/split_weight.h"
#include "base/errors.h"

namespace kvcache {
namespace {

// The most products of one call (gate and up).
constexpr std::size_t kFewOutputs = 2;

}  // namespace

Result<std::unique_ptr<ExpertRouting>> SplitRouting::Make(Backend& whole, SplitMemory& memory,
                                                          const int& side, Parts parts,
                                                          const RoutingSizes& sizes) {
  std::unique_ptr<SplitRouting> made;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for expert routing", [&] {
    made.reset(new SplitRouting(memory, side, std::move(parts)));
    made->outputs_.reserve(kFewOutputs);
  }));
  if (made->parts_[0] == nullptr || made->parts_[1] == nullptr) {
    KVCACHE_RETURN_IF_ERROR(made->host_.Reserve(sizes));
    made->host_.Use(whole);  // which brings each call to the layer's backend
  }
  return std::unique_ptr<ExpertRouting>(std::move(made));
}

template <class F, class... Views>
Status SplitRouting::With(F&& f, const Views&... views) {
  ExpertRouting* const own = part();
  if (own == nullptr) return f(host_, views...);
  std::array<TensorView, sizeof...(views)> translated{views...};
  for (TensorView& view : translated) {
    KVCACHE_RETURN_IF_ERROR(memory_.Translate(view, side_));
  }
  return std::apply([&](const auto&... each) { return f(*own, each...); }, translated);
}

Status SplitRouting::Route(const TensorView& logits, const RouterOptions& options,
                           std::span<const float> factors) {
  side_ = layer_side_;
  return With([&](ExpertRouting& r, auto& own) { return r.Route(own, options, factors); }, logits);
}

Status SplitRouting::GatherTokens(const TensorView& x, const TensorView& columns) {
  return With([](ExpertRouting& r, auto& from, auto& to) { return r.GatherTokens(from, to); }, x,
              columns);
}

Status SplitRouting::GatherExperts(const TensorView& table, const TensorView& columns) {
  return With([](ExpertRouting& r, auto& from, auto& to) { return r.GatherExperts(from, to); },
              table, columns);
}

Status SplitRouting::WeighInputs(const TensorView& columns) {
  return With([](ExpertRouting& r, auto& own) { return r.WeighInputs(own); }, columns);
}

Status SplitRouting::ScaleByExpert(const TensorView& columns, std::span<const float> factors) {
  return With([&](ExpertRouting& r, auto& own) { return r.ScaleByExpert(own, factors); }, columns);
}

Status SplitRouting::Linear(const TensorView& x, std::span<const ExpertOutput> outputs) {
  if (part() == nullptr) return host_.Linear(x, outputs);
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a list of products",
                                  [&] { outputs_.assign(outputs.begin(), outputs.end()); }));
  for (ExpertOutput& output : outputs_) {
    const auto& weight = static_cast<const SplitWeight&>(*output.weight);
    if (weight.side() != side_) {
      return {StatusCode::kInternal, "an expert is multiplied where another backend's layer is"};
    }
    output.weight = weight.inner();
    KVCACHE_RETURN_IF_ERROR(memory_.Translate(output.y, side_));
  }
  return With([&](ExpertRouting& r, auto& own) { return r.Linear(own, outputs_); }, x);
}

Status SplitRouting::Combine(const TensorView& columns, const TensorView& out) {
  return With([](ExpertRouting& r, auto& from, auto& to) { return r.Combine(from, to); }, columns,
              out);
}

Result<ExpertSlots> SplitRouting::Slots() {
  ExpertRouting* const own = part();
  return own != nullptr ? own->Slots() : host_.Slots();
}

}  // namespace kvcache
