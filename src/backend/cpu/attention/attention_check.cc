// The argument checks of KvBackend::Attention.
#include <algorithm>
#include <string>

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/kv/kv_check.h"

namespace kvcache::cpu {
namespace {

// Cold, so that checks that succeed have their instructions side by side.
[[gnu::cold]] Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "attention: " + std::move(message));
}

std::string Dims(const TensorView& view) {
  return "[" + std::to_string(view.dims[0]) + ", " + std::to_string(view.dims[1]) + ", " +
         std::to_string(view.dims[2]) + "]";
}

Status CheckTensor(const char* name, const TensorView& view, std::int64_t head_dim,
                   const char* head_dim_name) {
  if (view.dims[0] != head_dim) {
    return Invalid(std::string(name) + " is " + Dims(view) + ", with head size " +
                   std::to_string(view.dims[0]) + "; must be the cache's " + head_dim_name + ", " +
                   std::to_string(head_dim));
  }
  const std::int64_t row = view.dims[0] * std::int64_t{sizeof(float)};
  const bool dense = view.dims[3] == 1 && view.stride_bytes[0] == std::int64_t{sizeof(float)} &&
                     view.stride_bytes[1] == row && view.stride_bytes[2] == row * view.dims[1];
  if (view.dtype != DType::kF32 || !dense) {
    return Invalid(std::string(name) + " is " + std::string(InfoOf(view.dtype).name) + " " +
                   Dims(view) + (dense ? "" : " with gaps") + "; must be dense f32 of rank 3");
  }
  return Status::Ok();
}

[[gnu::cold]] Status RunError(std::size_t history, const HistoryRun& run, const std::string& what) {
  return Invalid("history " + std::to_string(history) + ": run of " + std::to_string(run.length) +
                 " at position " + std::to_string(run.position) + what);
}

Status CheckRuns(const LayerKv& layer, std::span<const HistoryRun> runs, std::size_t history) {
  std::int64_t end = 0;
  for (const HistoryRun& run : runs) {
    if (run.length < 1 || run.position < end) {
      return RunError(history, run,
                      "; must not be empty and must not begin before " + std::to_string(end));
    }
    if (run.cell < 0 || std::int64_t{run.cell} + run.length > layer.cells) {
      return RunError(history, run,
                      " begins at cell " + std::to_string(run.cell) + "; must be within the " +
                          std::to_string(layer.cells) + " cells of the layer");
    }
    end = std::int64_t{run.position} + run.length;
    if (end > kEndOfSequence) {
      return RunError(history, run,
                      "; must end by the last position, " + std::to_string(kEndOfSequence - 1));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckVisibility(const LayerKv& layer, std::int64_t batch, const Visibility& visibility) {
  const auto differs = [&](const char* name, std::size_t size) {
    return Invalid(std::string(name) + " has " + std::to_string(size) +
                   " entries; must have one for each of the " + std::to_string(batch) +
                   " tokens of q");
  };
  const auto tokens = static_cast<std::size_t>(batch);
  if (visibility.positions.size() != tokens)
    return differs("positions", visibility.positions.size());
  if (visibility.history_of_query.size() != tokens) {
    return differs("history_of_query", visibility.history_of_query.size());
  }
  if (!visibility.bidirectional.empty() && visibility.bidirectional.size() != tokens) {
    return differs("bidirectional", visibility.bidirectional.size());
  }
  if (visibility.window < 0 || visibility.chunk < 0) {
    return Invalid("window is " + std::to_string(visibility.window) + " and chunk is " +
                   std::to_string(visibility.chunk) + "; must be at least 0");
  }
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::int64_t history = visibility.history_of_query[i];
    const auto count = static_cast<std::int64_t>(visibility.histories.size());
    if (history < 0 || history >= count || visibility.positions[i] < 0 ||
        visibility.positions[i] == kEndOfSequence) {
      return Invalid("token " + std::to_string(i) + " is at position " +
                     std::to_string(visibility.positions[i]) + " of history " +
                     std::to_string(history) + "; must be at a position from 0 to " +
                     std::to_string(kEndOfSequence - 1) + " of one of " + std::to_string(count) +
                     " histories");
    }
  }
  for (std::size_t i = 0; i < visibility.histories.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(CheckRuns(layer, visibility.histories[i], i));
  }
  return Status::Ok();
}

namespace {

Status CheckBias(const PositionBias& bias, std::int64_t heads) {
  constexpr int kMaxDistances = 1 << 24;  // so that sums of distances fit into 32 bits
  if (bias.values.empty()) return Status::Ok();
  const std::int64_t distances = std::int64_t{bias.past} + 1 + bias.future;
  if (bias.past >= 0 && bias.future >= 0 && distances <= kMaxDistances &&
      static_cast<std::int64_t>(bias.values.size()) == heads * distances) {
    return Status::Ok();
  }
  return Invalid("bias has " + std::to_string(bias.values.size()) + " values for past " +
                 std::to_string(bias.past) + " and future " + std::to_string(bias.future) +
                 "; must have " + std::to_string(heads) +
                 " heads × (past + 1 + future), with at most " + std::to_string(kMaxDistances) +
                 " distances");
}

}  // namespace

Status CheckAttention(const LayerKv& layer, const TensorView& q, const AttentionOptions& options,
                      const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(layer));
  KVCACHE_RETURN_IF_ERROR(CheckTensor("q", q, layer.shape.k_dim, "k_dim"));
  KVCACHE_RETURN_IF_ERROR(CheckTensor("out", out, layer.shape.v_dim, "v_dim"));
  const std::int64_t heads = q.dims[1];
  if (heads < 1 || heads % layer.shape.kv_heads != 0) {
    return Invalid("q is " + Dims(q) + ", with " + std::to_string(heads) +
                   " heads; must be a multiple of the cache's kv_heads, " +
                   std::to_string(layer.shape.kv_heads));
  }
  if (out.dims[1] != heads || out.dims[2] != q.dims[2]) {
    return Invalid("out is " + Dims(out) + "; must have the heads and tokens of q, " + Dims(q));
  }
  if (!options.sinks.empty() && static_cast<std::int64_t>(options.sinks.size()) != heads) {
    return Invalid("sinks has " + std::to_string(options.sinks.size()) +
                   " values; must have one for each of the " + std::to_string(heads) +
                   " heads of q");
  }
  return CheckBias(options.bias, heads);
}

}  // namespace kvcache::cpu
