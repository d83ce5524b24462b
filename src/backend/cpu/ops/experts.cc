#include "backend/cpu/ops/experts.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "backend/cpu/ops/elementwise_kernels.h"
#include "backend/cpu/ops/experts_check.h"
#include "backend/cpu/ops/router_kernels.h"

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
std::int32_t Best(std::span<const float> scores, std::span<const std::int32_t> taken) {
  std::int32_t best = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(scores.size()); ++i) {
    if (Contains(taken, i)) continue;
    if (best < 0 || scores[static_cast<std::size_t>(i)] > scores[static_cast<std::size_t>(best)]) {
      best = i;
    }
  }
  return best;
}

void Choose(std::span<const float> scores, std::span<std::int32_t> chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = Best(scores, chosen.first(i));
}

// The gate's values for a token's logits: the exp or sigmoid of each. An expert's share is its value
// divided by a sum.
class Gate {
 public:
  Gate(std::span<const float> logits, RouterOptions::Gate kind) : logits_(logits), kind_(kind) {
    if (kind_ == RouterOptions::Gate::kSigmoid) return;
    largest_ = logits_[static_cast<std::size_t>(Best(logits_, {}))];
  }

  void ValuesOf(std::span<const float> logits, std::span<float> values) const {
    kernel::GateValues(logits.data(), std::ssize(logits), kind_, largest_, values.data());
  }

  // Returns the divisor of the values of all experts: their sum, ascending by expert; 1 for sigmoids.
  float SumOfAll() const {
    if (kind_ == RouterOptions::Gate::kSigmoid) return 1.0f;
    return kernel::SumOfExps(logits_.data(), std::ssize(logits_), largest_);
  }

 private:
  std::span<const float> logits_;
  RouterOptions::Gate kind_;
  float largest_ = 0.0f;
};

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// Excludes the experts of all groups but the best.
void ExcludeGroups(const RouterOptions& options, std::span<float> scores) {
  const std::size_t size = scores.size() / static_cast<std::size_t>(options.groups);
  std::array<float, RouterOptions::kMaxScored> of_group;
  std::array<std::int32_t, RouterOptions::kMaxScored> memory;
  for (std::size_t group = 0; group < static_cast<std::size_t>(options.groups); ++group) {
    const std::span<std::int32_t> best =
        std::span(memory).first(static_cast<std::size_t>(options.group_best));
    const std::span<const float> members = scores.subspan(group * size, size);
    Choose(members, best);
    of_group[group] = 0.0f;
    for (const std::int32_t i : best) of_group[group] += members[static_cast<std::size_t>(i)];
  }
  const std::span<std::int32_t> used =
      std::span(memory).first(static_cast<std::size_t>(options.groups_used));
  const auto groups = static_cast<std::size_t>(options.groups);
  Choose(std::span(of_group).first(groups), used);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!Contains(used, static_cast<std::int32_t>(i / size))) scores[i] = kExcluded;
  }
}

void ChooseByScore(const Gate& gate, std::span<const float> logits, const RouterOptions& options,
                   std::span<std::int32_t> experts) {
  std::array<float, RouterOptions::kMaxScored> memory;
  const std::span<float> scores = std::span(memory).first(logits.size());
  gate.ValuesOf(logits, scores);
  const float sum = gate.SumOfAll();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] /= sum;
    if (!options.selection_bias.empty()) scores[i] += options.selection_bias[i];
  }
  if (options.groups > 1) ExcludeGroups(options, scores);
  Choose(scores, experts);
}

void RouteToken(std::span<const float> logits, const RouterOptions& options,
                std::span<std::int32_t> experts, std::span<float> weights) {
  // Keeps a sum of sigmoids above zero.
  constexpr float kMinSum = 1e-20f;
  const Gate gate(logits, options.gate);
  if (IsScored(options)) {
    ChooseByScore(gate, logits, options, experts);
  } else {
    Choose(logits, experts);
  }
  for (std::size_t i = 0; i < experts.size(); ++i) {
    weights[i] = logits[static_cast<std::size_t>(experts[i])];
  }
  gate.ValuesOf(weights, weights);
  const float sum =
      options.weights == RouterOptions::Weights::kNormalized
          ? std::max(kernel::SumOfShares(weights.data(), std::ssize(weights)), kMinSum)
          : gate.SumOfAll();
  for (float& weight : weights) weight = weight / sum * options.scale;
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
