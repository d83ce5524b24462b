#include "backend/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "backend/cpu/elementwise_kernels.h"

namespace kvcache::cpu {
namespace {

// Work that is worth a task of its own: exponentials, and values of a weighted sum.
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

// body(column) for all columns, `per_task` of them to a task.
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

// The untaken expert with the largest logit, the first of equal ones. A logit that is not a
// number is never larger, but something is always chosen.
std::int32_t Best(std::span<const float> logits, std::span<const std::int32_t> taken) {
  std::int32_t best = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(logits.size()); ++i) {
    if (Contains(taken, i)) continue;
    if (best < 0 || logits[static_cast<std::size_t>(i)] > logits[static_cast<std::size_t>(best)]) {
      best = i;
    }
  }
  return best;
}

void RouteToken(std::span<const float> logits, const RouterOptions& options,
                std::span<std::int32_t> experts, std::span<float> weights) {
  for (std::size_t i = 0; i < experts.size(); ++i) experts[i] = Best(logits, experts.first(i));
  const auto logit = [&](std::int32_t e) { return double{logits[static_cast<std::size_t>(e)]}; };
  const double largest = logit(experts[0]);
  double sum = 0.0;
  if (options.weights == RouterOptions::Weights::kOfChosen) {
    for (const std::int32_t expert : experts) sum += std::exp(logit(expert) - largest);
  } else {
    for (const float each : logits) sum += std::exp(double{each} - largest);
  }
  for (std::size_t i = 0; i < experts.size(); ++i) {
    weights[i] =
        static_cast<float>(std::exp(logit(experts[i]) - largest) / sum * double{options.scale});
  }
}

Status CheckCombine(const TensorView& y, std::span<const std::int32_t> columns,
                    std::span<const float> weights, const TensorView& out) {
  if (!IsColumns(y) || !IsColumns(out) || y.dims[0] != out.dims[0]) {
    return Invalid("combine: y " + Size(y) + " and out " + Size(out) +
                   " are not f32 columns of one width");
  }
  const auto count = static_cast<std::int64_t>(columns.size());
  if (weights.size() != columns.size() || out.dims[1] < 1 || count < 1 ||
      count % out.dims[1] != 0) {
    return Invalid("combine: " + std::to_string(count) + " columns and " +
                   std::to_string(weights.size()) + " weights for out " + Size(out));
  }
  for (const std::int32_t column : columns) {
    if (column < 0 || column >= y.dims[1]) {
      return Invalid("combine: column " + std::to_string(column) + " of y " + Size(y));
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
    return Invalid("route: " + std::to_string(options.chosen) + " experts out of logits " +
                   Size(logits) + " into " + std::to_string(experts.size()) + " places and " +
                   std::to_string(weights.size()) + " weights");
  }
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
