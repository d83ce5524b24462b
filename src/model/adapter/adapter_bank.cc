#include "model/adapter/adapter_bank.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model/load/spellings.h"

namespace kvcache {
namespace {

// Columns that are computed at once. Their B t stays in a cache of the processor.
constexpr std::int64_t kAdapterColumns = 64;
// Experts of a token, at most: each has a column of its own.
constexpr std::int64_t kMaxTokenSlots = 64;

std::string ShapeOf(const GgufTensor& tensor) {
  return StrCat("tensor ", Quoted(tensor.name), " [", tensor.dims[0], ", ", tensor.dims[1],
                tensor.dims[2] > 1 ? StrCat(", ", tensor.dims[2]) : std::string(), "]");
}

TensorView ColumnsFrom(const TensorView& view, std::int64_t first, std::int64_t count) {
  return TensorView::Dense(view.data + first * view.stride_bytes[1], DType::kF32, view.dims[0],
                           count);
}

// `base`: the matrix that the half belongs to; null: the embedding.
Result<std::unique_ptr<LinearWeight>> MakeHalf(Backend& backend, const LinearWeight* base,
                                               const GgufTensor& tensor, const TensorView& view) {
  auto weight = base == nullptr ? backend.MakeLinear(view) : backend.MakeLinearBeside(*base, view);
  if (weight.ok()) return weight;
  return std::move(weight).TakeStatus().WithContext(StrCat("tensor ", Quoted(tensor.name)));
}

}  // namespace

const AdapterBank::Bound* AdapterBank::Adapter::Find(const LinearWeight* base) const {
  const auto at = std::ranges::lower_bound(bound, base, std::less<>(), &Bound::base);
  return at != bound.end() && at->base == base ? &*at : nullptr;
}

void AdapterBank::SetSites(std::vector<LinearSite> sites) {
  sites_ = std::move(sites);
  std::erase_if(sites_, [](const LinearSite& site) { return site.tensor == kEmbeddingTensor; });
}

Status AdapterBank::Add(const AdapterFile& file, const AdapterBase& base, Backend& backend) {
  if (ArchitectureOf(file.architecture()) != ArchitectureOf(base.architecture)) {
    return InvalidArgument(StrCat("general.architecture is ", Quoted(file.architecture()),
                                  "; the adapter is for other models than this ",
                                  Quoted(base.architecture)));
  }
  return Guarded("no memory for an adapter", [&]() -> Status {
    Adapter adapter;
    adapter.spelling = FindSpelling(file.architecture());
    for (const AdapterPair& pair : file.pairs()) {
      const double factor =
          file.alpha() > 0.0 ? file.alpha() / static_cast<double>(pair.rank) : 1.0;
      const auto bind =
          pair.tensor == kEmbeddingTensor ? &AdapterBank::BindEmbedding : &AdapterBank::Bind;
      KVCACHE_RETURN_IF_ERROR((this->*bind)(pair, factor, base, backend, adapter));
      adapter.max_rank = std::max(adapter.max_rank, pair.rank);
    }
    std::ranges::sort(adapter.bound, std::less<>(), &Bound::base);
    max_rank_ = std::max(max_rank_, adapter.max_rank);
    max_outputs_ = std::max(max_outputs_, adapter.max_outputs);
    for (const auto& weight : adapter.weights) owned_bytes_ += weight->owned_bytes();
    if (adapter.embedding) owned_bytes_ += adapter.embedding->b->owned_bytes();
    adapters_.push_back(std::move(adapter));
    return Status::Ok();
  });
}

Status AdapterBank::Bind(const AdapterPair& pair, double factor, const AdapterBase& base,
                         Backend& backend, Adapter& adapter) const {
  const GgufTensor& a = *pair.a;
  const GgufTensor& b = *pair.b;
  const LinearWeight* a_weight = nullptr;  // all parts of a tensor share it
  for (const LinearSite& site : sites_) {
    const bool is_named =
        site.tensor == pair.tensor || OtherTensorName(adapter.spelling, site.tensor) == pair.tensor;
    if (!is_named) continue;
    const LinearWeight& weight = *site.weight;
    const std::int64_t stack = weight.matrices() / (site.is_pairs ? 2 : 1);
    if (a.dims[0] != weight.inputs() || a.dims[2] != stack) {
      return Corrupt(StrCat(ShapeOf(a), " does not fit the base, whose matrix has ",
                            weight.inputs(), " inputs",
                            stack > 1 ? StrCat(" and ", stack, " experts") : ""));
    }
    if (b.dims[1] != site.tensor_rows) {
      return Corrupt(StrCat(ShapeOf(b), " does not fit the base, whose matrix has ",
                            site.tensor_rows, " outputs"));
    }
    if (a_weight == nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(const TensorView view, a.View());
      KVCACHE_ASSIGN_OR_RETURN(auto made, MakeHalf(backend, &weight, a, view));
      a_weight = made.get();
      adapter.weights.push_back(std::move(made));
    }
    KVCACHE_ASSIGN_OR_RETURN(TensorView rows, b.View());
    if (site.is_pairs) {
      rows = TensorView::Dense(rows.data, rows.dtype, rows.dims[0], weight.outputs(),
                               weight.matrices());
    } else if (weight.outputs() != site.tensor_rows) {
      rows = TensorView::Dense(rows.data + site.first_row * rows.stride_bytes[1], rows.dtype,
                               rows.dims[0], weight.outputs());
    }
    KVCACHE_ASSIGN_OR_RETURN(auto made, MakeHalf(backend, &weight, b, rows));
    adapter.bound.push_back({.base = &weight,
                             .a = a_weight,
                             .b = made.get(),
                             .rank = pair.rank,
                             .shared_a = site.is_pairs ? 2 : 1,
                             .factor = factor});
    adapter.weights.push_back(std::move(made));
    adapter.max_outputs = std::max(adapter.max_outputs, weight.outputs());
  }
  if (a_weight != nullptr) return Status::Ok();
  return NotFound(StrCat("tensor ", Quoted(a.name), " is for ", Quoted(pair.tensor),
                         ", which is no matrix of this ", Quoted(base.architecture),
                         " that adapters can change"));
}

Status AdapterBank::BindEmbedding(const AdapterPair& pair, double factor, const AdapterBase& base,
                                  Backend& backend, Adapter& adapter) const {
  const GgufTensor& a = *pair.a;
  const GgufTensor& b = *pair.b;
  if (a.dims[1] != base.embedding_rows || b.dims[1] != base.hidden_size || a.dims[2] != 1) {
    return Corrupt(StrCat(ShapeOf(a), " and ", ShapeOf(b),
                          " do not fit the base, whose embedding has ", base.embedding_rows,
                          " rows of ", base.hidden_size, " values"));
  }
  Embedding embedding{.factor = factor};
  KVCACHE_ASSIGN_OR_RETURN(const TensorView file_rows, a.View());
  // A type that the backend does not support fails here instead of in a pass.
  const TensorView none = TensorView::Dense(nullptr, DType::kF32, pair.rank, 0);
  KVCACHE_RETURN_IF_ERROR(
      backend.Embed(file_rows, {}, none).WithContext(StrCat("tensor ", Quoted(a.name))));
  KVCACHE_RETURN_IF_ERROR(backend.EnterLayer(Backend::kBeforeLayers, TensorView{}));
  KVCACHE_ASSIGN_OR_RETURN(embedding.a,
                           embedding.placed.Place(backend, Backend::kBeforeLayers, file_rows));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView rows, b.View());
  KVCACHE_ASSIGN_OR_RETURN(embedding.b, MakeHalf(backend, nullptr, b, rows));
  adapter.max_outputs = std::max(adapter.max_outputs, base.hidden_size);
  adapter.embedding = std::move(embedding);
  return Status::Ok();
}

Status AdapterBank::Reserve(Backend& backend, std::int64_t batch) {
  if (adapters_.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a pass with adapters", [&] {
    const auto tokens = static_cast<std::size_t>(batch);
    uses_.reserve(tokens * adapters_.size());
    sets_.reserve(tokens);
    set_of_token_.reserve(tokens);
    runs_.reserve(tokens);
    other_runs_.reserve(tokens * kMaxTokenSlots);
    items_.reserve(kAdapterColumns);
    outputs_.reserve(kAdapterColumns);
    groups_.reserve(kAdapterColumns);
  }));
  return scratch_.Reserve(backend, kAdapterColumns * (AlignedValues(max_rank_) + max_outputs_));
}

std::int32_t AdapterBank::SetOf(AdapterUses uses) {
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const auto known = std::span(uses_).subspan(sets_[i].begin, sets_[i].end - sets_[i].begin);
    if (std::ranges::equal(known, uses)) return static_cast<std::int32_t>(i);
  }
  sets_.push_back({uses_.size(), uses_.size() + uses.size()});
  uses_.insert(uses_.end(), uses.begin(), uses.end());
  return static_cast<std::int32_t>(sets_.size() - 1);
}

void AdapterBank::AddRun(std::vector<Run>& runs, std::int64_t column, std::int32_t set,
                         std::int32_t expert) {
  if (set < 0) return;
  if (!runs.empty() && runs.back().end == column && runs.back().set == set &&
      runs.back().expert == expert) {
    ++runs.back().end;
  } else {
    runs.push_back({column, column + 1, set, expert});
  }
}

void AdapterBank::Begin(std::span<const AdapterUses> of_token) {
  uses_.clear();
  sets_.clear();
  set_of_token_.clear();
  runs_.clear();
  AdapterUses last;
  std::int32_t set = -1;
  for (const AdapterUses uses : of_token) {
    const bool is_same = uses.data() == last.data() && uses.size() == last.size();
    if (!is_same) set = uses.empty() ? -1 : SetOf(uses);
    last = uses;
    AddRun(runs_, std::ssize(set_of_token_), set, 0);
    set_of_token_.push_back(set);
  }
}

float AdapterBank::ScaleIn(const Set& set, int adapter) const {
  for (std::size_t i = set.begin; i < set.end; ++i) {
    if (uses_[i].adapter == adapter) return uses_[i].scale;
  }
  return 0.0f;
}

Status AdapterBank::Apply(Backend& backend, const TensorView& x,
                          std::span<const Product> products) {
  return ApplyRuns(backend, x, runs_, products);
}

Status AdapterBank::ApplyRows(Backend& backend, const TensorView& x,
                              std::span<const std::int32_t> rows, const Product& product) {
  other_runs_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    AddRun(other_runs_, static_cast<std::int64_t>(i),
           set_of_token_[static_cast<std::size_t>(rows[i])], 0);
  }
  return ApplyRuns(backend, x, other_runs_, std::span(&product, 1));
}

Status AdapterBank::ApplyAll(Backend& backend, const TensorView& x, AdapterUses uses,
                             const Product& product) {
  const Run all{.begin = 0, .end = product.output.y.dims[1], .set = SetOf(uses)};
  return ApplyRuns(backend, x, {&all, 1}, {&product, 1});
}

Status AdapterBank::ApplySlots(Backend& backend, const TensorView& x,
                               std::span<const std::int32_t> token_of_slot,
                               std::span<const std::int32_t> expert_of_slot,
                               std::span<const Product> products) {
  other_runs_.clear();
  for (std::size_t i = 0; i < token_of_slot.size(); ++i) {
    AddRun(other_runs_, static_cast<std::int64_t>(i),
           set_of_token_[static_cast<std::size_t>(token_of_slot[i])], expert_of_slot[i]);
  }
  return ApplyRuns(backend, x, other_runs_, products);
}

Status AdapterBank::ApplyRuns(Backend& backend, const TensorView& x, std::span<const Run> runs,
                              std::span<const Product> products) {
  for (int i = 0; i < size(); ++i) {
    for (const Product& product : products) {
      const Bound* const bound = adapters_[static_cast<std::size_t>(i)].Find(product.output.weight);
      if (bound == nullptr) continue;
      for (const Run& run : runs) {
        const float scale = ScaleIn(sets_[static_cast<std::size_t>(run.set)], i);
        if (scale == 0.0f) continue;
        KVCACHE_RETURN_IF_ERROR(Queue(backend, *bound, scale, x, run, product));
      }
    }
  }
  return RunQueue(backend);
}

Status AdapterBank::Queue(Backend& backend, const Bound& bound, float scale, const TensorView& x,
                          const Run& run, const Product& product) {
  const std::int64_t matrix = product.output.matrix + run.expert * product.step;
  const bool shares_x = x.dims[1] == 1 && product.output.y.dims[1] > 1;
  for (std::int64_t at = run.begin; at < run.end;) {
    const std::int64_t count = std::min(run.end - at, kAdapterColumns - queued_);
    items_.push_back({.a = bound.a,
                      .b = bound.b,
                      .matrix_a = matrix / bound.shared_a,
                      .matrix_b = matrix,
                      .rank = bound.rank,
                      .factor = static_cast<float>(static_cast<double>(scale) * bound.factor),
                      .x = shares_x ? ColumnsFrom(x, 0, 1) : ColumnsFrom(x, at, count),
                      .y = ColumnsFrom(product.output.y, at, count)});
    queued_ += count;
    at += count;
    if (queued_ == kAdapterColumns) KVCACHE_RETURN_IF_ERROR(RunQueue(backend));
  }
  return Status::Ok();
}

// The queue's t lie behind each other, item by item. Items with one factor are scaled at once.
Status AdapterBank::ScaleQueue(Backend& backend) const {
  std::int64_t begin = 0, end = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const float factor = items_[i].factor;
    end += items_[i].rank * items_[i].y.dims[1];
    if (i + 1 < items_.size() && items_[i + 1].factor == factor) continue;
    if (factor != 1.0f) {
      KVCACHE_RETURN_IF_ERROR(backend.Scale(scratch_.At(begin, end - begin, 1), factor));
    }
    begin = end;
  }
  return Status::Ok();
}

Status AdapterBank::RunQueue(Backend& backend) {
  queued_ = 0;
  if (items_.empty()) return Status::Ok();
  const auto run = [&](auto&& group_of) {
    outputs_.clear();
    groups_.clear();
    std::int64_t t = 0;
    std::int64_t d = kAdapterColumns * AlignedValues(max_rank_);
    for (const Item& item : items_) {
      const std::int64_t count = item.y.dims[1];
      group_of(item, scratch_.At(t, item.rank, count), scratch_.At(d, item.y.dims[0], count));
      groups_.back().outputs = std::span(&outputs_.back(), 1);
      t += item.rank * count;
      d += item.y.dims[0] * count;
    }
    return backend.LinearGroups(groups_);
  };
  Status status = run([&](const Item& item, const TensorView& t, const TensorView&) {
    outputs_.push_back({item.a, t, item.matrix_a});
    groups_.push_back({item.x, {}});
  });
  if (status.ok()) status = ScaleQueue(backend);
  if (status.ok()) {
    status = run([&](const Item& item, const TensorView& t, const TensorView& d) {
      outputs_.push_back({item.b, d, item.matrix_b});
      groups_.push_back({t, {}});
    });
  }
  for (std::size_t i = 0; i < items_.size() && status.ok(); ++i) {
    status = backend.Add(items_[i].y, outputs_[i].y);
  }
  items_.clear();
  return status;
}

Status AdapterBank::ApplyEmbedding(Backend& backend, std::span<const std::int32_t> tokens,
                                   const TensorView& y) {
  for (int i = 0; i < size(); ++i) {
    const auto& embedding = adapters_[static_cast<std::size_t>(i)].embedding;
    if (!embedding) continue;
    const std::int64_t rank = embedding->a.dims[0];
    for (const Run& run : runs_) {
      const float scale = ScaleIn(sets_[static_cast<std::size_t>(run.set)], i);
      if (scale == 0.0f) continue;
      const auto factor = static_cast<float>(static_cast<double>(scale) * embedding->factor);
      for (std::int64_t at = run.begin; at < run.end; at += kAdapterColumns) {
        const std::int64_t count = std::min(run.end - at, kAdapterColumns);
        const TensorView t = scratch_.At(0, rank, count);
        const TensorView d =
            scratch_.At(kAdapterColumns * AlignedValues(max_rank_), y.dims[0], count);
        KVCACHE_RETURN_IF_ERROR(backend.Embed(
            embedding->a,
            tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), t));
        if (factor != 1.0f) KVCACHE_RETURN_IF_ERROR(backend.Scale(t, factor));
        const LinearOutput out[] = {{embedding->b.get(), d, 0}};
        KVCACHE_RETURN_IF_ERROR(backend.Linear(t, out));
        KVCACHE_RETURN_IF_ERROR(backend.Add(ColumnsFrom(y, at, count), d));
      }
    }
  }
  return Status::Ok();
}

}  // namespace kvcache
