#include "backend/cpu/ops/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "backend/cpu/ops/elementwise_kernels.h"

namespace kvcache::cpu {
namespace {

// The work of a task: exponentials, and values of a weighted sum.
constexpr std::int64_t kTaskExps = 512;
constexpr std::int64_t kTaskValues = 16'384;

Status Invalid(const std::string& message) {
  return {StatusCode::kInvalidArgument, message};
}

std::string Size(const TensorView& view) {
  return "[" + std::to_string(view.dims[0]) + ", " + std::to_string(view.dims[1]) + "]";
}

bool IsColumns(const TensorView& view) {
  return view.dtype == DType::kF32 && view.stride_bytes[0] == 4 && view.dims[2] == 1 &&
         view.dims[3] == 1;
}

float* Column(const TensorView& view, std::int64_t column) {
  return reinterpret_cast<float*>(view.data + column * view.stride_bytes[1]);
}

// Runs body(column) for all columns, `per_task` columns per task.
template <typename Body>
void ForColumns(ThreadPool& pool, std::int64_t columns, std::int64_t per_task, const Body& body) {
  const std::int64_t size = std::max<std::int64_t>(1, per_task);
  pool.ParallelFor((columns + size - 1) / size, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(columns, (task + 1) * size);
    for (std::int64_t column = task * size; column < end; ++column) body(column);
  });
}

bool Contains(std::span<const std::int32_t> taken, std::int32_t expert) {
  return std::ranges::find(taken, expert) != taken.end();
}

// Returns the expert with the largest score among those not taken, the first of equal ones. A NaN
// is never larger than another score, but some expert is always chosen.
template <typename T>
std::int32_t Best(std::span<const T> scores, std::span<const std::int32_t> taken) {
  std::int32_t best = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(scores.size()); ++i) {
    if (Contains(taken, i)) continue;
    if (best < 0 || scores[static_cast<std::size_t>(i)] > scores[static_cast<std::size_t>(best)]) {
      best = i;
    }
  }
  return best;
}

template <typename T>
void Choose(std::span<const T> scores, std::span<std::int32_t> chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = Best(scores, chosen.first(i));
}

// The gate's values for a token's logits: the exp or sigmoid of each, in double. An expert's share
// is its value divided by `sum` for softmax, otherwise the value itself.
class Gate {
 public:
  Gate(std::span<const float> logits, RouterOptions::Gate kind) : logits_(logits), kind_(kind) {
    if (kind_ == RouterOptions::Gate::kSigmoid) return;
    largest_ = logits_[static_cast<std::size_t>(Best(logits_, {}))];
  }

  double operator()(std::int32_t expert) const {
    const double logit = logits_[static_cast<std::size_t>(expert)];
    return kind_ == RouterOptions::Gate::kSigmoid ? 1.0 / (1.0 + std::exp(-logit))
                                                  : std::exp(logit - largest_);
  }

  // Returns the divisor of the values of all experts: their sum, ascending by expert.
  double SumOfAll() const {
    if (kind_ == RouterOptions::Gate::kSigmoid) return 1.0;
    double sum = 0.0;
    for (std::size_t i = 0; i < logits_.size(); ++i) sum += (*this)(static_cast<std::int32_t>(i));
    return sum;
  }

 private:
  std::span<const float> logits_;
  RouterOptions::Gate kind_;
  double largest_ = 0.0;
};

// Returns whether the experts are chosen by anything but the order of the logits.
bool IsScored(const RouterOptions& options) {
  return !options.selection_bias.empty() || options.groups > 1;
}

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

// Excludes the experts of all groups but the best.
void ExcludeGroups(const RouterOptions& options, std::span<double> scores) {
  const std::size_t size = scores.size() / static_cast<std::size_t>(options.groups);
  std::array<double, RouterOptions::kMaxScored> of_group;
  std::array<std::int32_t, RouterOptions::kMaxScored> memory;
  for (std::size_t group = 0; group < static_cast<std::size_t>(options.groups); ++group) {
    const std::span<std::int32_t> best =
        std::span(memory).first(static_cast<std::size_t>(options.group_best));
    const std::span<const double> members = scores.subspan(group * size, size);
    Choose(members, best);
    of_group[group] = 0.0;
    for (const std::int32_t i : best) of_group[group] += members[static_cast<std::size_t>(i)];
  }
  const std::span<std::int32_t> used =
      std::span(memory).first(static_cast<std::size_t>(options.groups_used));
  const auto groups = static_cast<std::size_t>(options.groups);
  Choose(std::span<const double>(of_group).first(groups), used);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!Contains(used, static_cast<std::int32_t>(i / size))) scores[i] = kExcluded;
  }
}

void ChooseByScore(const Gate& gate, std::size_t all, const RouterOptions& options,
                   std::span<std::int32_t> experts) {
  std::array<double, RouterOptions::kMaxScored> memory;
  const std::span<double> scores = std::span(memory).first(all);
  const double sum = gate.SumOfAll();
  for (std::size_t i = 0; i < all; ++i) {
    scores[i] = gate(static_cast<std::int32_t>(i)) / sum;
    if (!options.selection_bias.empty()) scores[i] += double{options.selection_bias[i]};
  }
  if (options.groups > 1) ExcludeGroups(options, scores);
  Choose(std::span<const double>(scores), experts);
}

void RouteToken(std::span<const float> logits, const RouterOptions& options,
                std::span<std::int32_t> experts, std::span<float> weights) {
  // Keeps a sum of sigmoids above zero.
  constexpr double kMinSum = 1e-20;
  const Gate gate(logits, options.gate);
  if (IsScored(options)) {
    ChooseByScore(gate, logits.size(), options, experts);
  } else {
    Choose(logits, experts);
  }
  double sum = 0.0;
  if (options.weights == RouterOptions::Weights::kNormalized) {
    for (const std::int32_t expert : experts) sum += gate(expert);
    sum = std::max(sum, kMinSum);
  } else {
    sum = gate.SumOfAll();
  }
  for (std::size_t i = 0; i < experts.size(); ++i) {
    weights[i] = static_cast<float>(gate(experts[i]) / sum * double{options.scale});
  }
}

Status CheckScored(const RouterOptions& options, std::int64_t experts) {
  if (!IsScored(options)) return Status::Ok();
  if (experts > RouterOptions::kMaxScored) {
    return {StatusCode::kUnsupported, "route: " + std::to_string(experts) +
                                          " experts with a bias or groups; must be at most " +
                                          std::to_string(RouterOptions::kMaxScored)};
  }
  if (!options.selection_bias.empty() &&
      static_cast<std::int64_t>(options.selection_bias.size()) != experts) {
    return Invalid("route: selection_bias has " + std::to_string(options.selection_bias.size()) +
                   " values; must have one for each of " + std::to_string(experts) + " experts");
  }
  const std::int64_t size = options.groups > 0 ? experts / options.groups : 0;
  if (options.groups < 1 || experts % options.groups != 0 || options.groups_used < 1 ||
      options.groups_used > options.groups || options.group_best < 1 || options.group_best > size ||
      options.chosen > options.groups_used * size) {
    return Invalid("route: groups is " + std::to_string(options.groups) + ", groups_used is " +
                   std::to_string(options.groups_used) + ", group_best is " +
                   std::to_string(options.group_best) + ", chosen is " +
                   std::to_string(options.chosen) + "; groups must divide the " +
                   std::to_string(experts) +
                   " experts, and the used groups must have the chosen and the best experts");
  }
  return Status::Ok();
}

Status CheckCombine(const TensorView& y, std::span<const std::int32_t> columns,
                    std::span<const float> weights, const TensorView& out) {
  if (!IsColumns(y) || !IsColumns(out) || y.dims[0] != out.dims[0]) {
    return Invalid("combine: y is " + Size(y) + " and out is " + Size(out) +
                   "; must be f32 columns of one width");
  }
  const auto count = static_cast<std::int64_t>(columns.size());
  if (weights.size() != columns.size() || out.dims[1] < 1 || count < 1 ||
      count % out.dims[1] != 0) {
    return Invalid("combine: there are " + std::to_string(count) + " columns and " +
                   std::to_string(weights.size()) + " weights, and out is " + Size(out) +
                   "; must be equally many, a multiple of the columns of out");
  }
  for (const std::int32_t column : columns) {
    if (column < 0 || column >= y.dims[1]) {
      return Invalid("combine: column is " + std::to_string(column) + "; must be one of y, " +
                     Size(y));
    }
  }
  return Status::Ok();
}

}  // namespace

Status Route(ThreadPool& pool, const TensorView& logits, const RouterOptions& options,
             std::span<std::int32_t> experts, std::span<float> weights) {
  const auto count = static_cast<std::size_t>(std::max(options.chosen, 0));
  if (!IsColumns(logits) || options.chosen < 1 || options.chosen > logits.dims[0] ||
      experts.size() != count * static_cast<std::size_t>(logits.dims[1]) ||
      weights.size() != experts.size()) {
    return Invalid("route: chosen is " + std::to_string(options.chosen) + ", logits are " +
                   Size(logits) + ", experts has " + std::to_string(experts.size()) +
                   " entries and weights has " + std::to_string(weights.size()) +
                   "; chosen must be at least 1 and at most the logits of a token, and each output "
                   "must have that many entries per token");
  }
  const std::int64_t all = logits.dims[0];
  KVCACHE_RETURN_IF_ERROR(CheckScored(options, all));
  ForColumns(pool, logits.dims[1], kTaskExps / all, [&](std::int64_t token) {
    const std::size_t at = static_cast<std::size_t>(token) * count;
    RouteToken({Column(logits, token), static_cast<std::size_t>(all)}, options,
               experts.subspan(at, count), weights.subspan(at, count));
  });
  return Status::Ok();
}

Status Combine(ThreadPool& pool, const TensorView& y, std::span<const std::int32_t> columns,
               std::span<const float> weights, const TensorView& out) {
  if (columns.empty() && out.dims[1] == 0) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckCombine(y, columns, weights, out));
  const std::int64_t width = out.dims[0];
  const std::size_t parts = columns.size() / static_cast<std::size_t>(out.dims[1]);
  ForColumns(pool, out.dims[1], kTaskValues / std::max<std::int64_t>(1, width),
             [&](std::int64_t token) {
               const std::size_t at = static_cast<std::size_t>(token) * parts;
               float* const sum = Column(out, token);
               for (std::size_t i = at; i < at + parts; ++i) {
                 const float* const part = Column(y, columns[i]);
                 if (i == at) {
                   kernel::Scale(part, weights[i], width, sum);
                 } else {
                   kernel::AddScaled(part, weights[i], width, sum);
                 }
               }
             });
  return Status::Ok();
}

}  // namespace kvcache::cpu
