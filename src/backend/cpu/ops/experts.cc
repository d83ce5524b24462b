#include "backend/cpu/ops/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backend/cpu/ops/elementwise_kernels.h"
#include "backend/cpu/ops/experts_check.h"

namespace kvcache::cpu {
namespace {

// The work of a task: exponentials, and values of a weighted sum.
constexpr std::int64_t kTaskExps = 512;
constexpr std::int64_t kTaskValues = 16'384;

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

}  // namespace

Status Route(ThreadPool& pool, const TensorView& logits, const RouterOptions& options,
             std::span<std::int32_t> experts, std::span<float> weights) {
  KVCACHE_RETURN_IF_ERROR(CheckRoute(logits, options, experts.size(), weights.size()));
  const auto count = static_cast<std::size_t>(options.chosen);
  const std::int64_t all = logits.dims[0];
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
