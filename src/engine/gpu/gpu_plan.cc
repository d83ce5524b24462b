#include "engine/gpu/gpu_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/errors.h"
#include "base/strings.h"
#include "model/layer_memory.h"

namespace kvcache {
namespace {

// Memory that stays free: for the driver, its kernels, and arrays of calls.
std::int64_t ReserveOf(std::int64_t free_bytes) {
  return (std::int64_t{512} << 20) + free_bytes / 32;
}
// Views of a pass that have the size of hidden states, at most, for the estimate of activations.
constexpr std::int64_t kHiddenViews = 24;
constexpr std::int64_t kDraftRows = 16;  // logits of drafts, beside one row of each sequence

// Returns the layer of a tensor's name ("blk.7.attn_q.weight"), or nothing.
std::optional<int> LayerOf(std::string_view name) {
  if (name.starts_with("dec.")) name.remove_prefix(4);
  if (!name.starts_with("blk.")) return std::nullopt;
  name.remove_prefix(4);
  int layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || end == name.data() + name.size() || *end != '.') {
    return std::nullopt;
  }
  return layer;
}

bool IsBefore(std::string_view name) {
  return name.starts_with("token_embd") || name.starts_with("per_layer_") ||
         name.starts_with("enc.") || name.starts_with("altup_") ||
         name.starts_with("position_embd") || name.starts_with("token_types");
}

// Tensors of other programs' parts: towers for pictures and sounds.
bool IsIgnored(std::string_view name) {
  return name.starts_with("v.") || name.starts_with("a.") || name.starts_with("mm.");
}

// Returns the bytes that the last `layers` layers need besides keys and values of tokens.
std::int64_t FixedBytes(const GpuNeeds& needs, const GpuWants& wants, int layers) {
  std::int64_t bytes = needs.behind + needs.scratch;
  const auto all = static_cast<int>(needs.layers.size());
  if (layers == all) bytes += needs.before;
  for (int i = all - layers; i < all; ++i) {
    const GpuNeeds::Layer& layer = needs.layers[static_cast<std::size_t>(i)];
    bytes += layer.weights + layer.per_sequence * wants.sequences;
  }
  return bytes;
}

std::int64_t TokenBytes(const GpuNeeds& needs, int layers) {
  std::int64_t bytes = 0;
  const std::size_t all = needs.layers.size();
  for (std::size_t i = all - static_cast<std::size_t>(layers); i < all; ++i) {
    bytes += needs.layers[i].per_token;
  }
  return bytes;
}

// Returns the tokens that fit beside the layers; -1: not even the layers fit.
std::int64_t TokensThatFit(const GpuNeeds& needs, const GpuWants& wants, int layers,
                           std::int64_t free_bytes) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const std::int64_t rest = free_bytes - ReserveOf(free_bytes) - FixedBytes(needs, wants, layers);
  if (rest < 0) return -1;
  const std::int64_t token = TokenBytes(needs, layers);
  return token == 0 ? kMany : rest / token;
}

}  // namespace

GpuNeeds NeedsOf(const GgufFile& file, const ModelInfo& info, const GpuWants& wants) {
  GpuNeeds needs;
  needs.layers.resize(static_cast<std::size_t>(info.layers));
  bool has_output = false;
  std::int64_t embedding = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes.size());
    const std::string_view name = tensor.name;
    if (IsIgnored(name)) continue;
    if (name == "output.weight") has_output = true;
    if (name == "token_embd.weight") embedding = bytes;
    if (const auto layer = LayerOf(name); layer && *layer < info.layers) {
      needs.layers[static_cast<std::size_t>(*layer)].weights += bytes;
    } else {
      (IsBefore(name) ? needs.before : needs.behind) += bytes;
    }
  }
  if (!has_output) needs.behind += embedding;  // the embedding is the output matrix too
  for (const LayerMemory& memory : info.memory) {
    if (memory.layer < 0 || memory.layer >= info.layers) continue;
    GpuNeeds::Layer& layer = needs.layers[static_cast<std::size_t>(memory.layer)];
    layer.per_token += BytesPerToken(memory, wants.k_type, wants.v_type);
    layer.per_sequence += BytesPerSequence(memory, wants.k_type, wants.v_type);
  }
  const std::int64_t states = kHiddenViews * std::int64_t{info.hidden_size} * wants.prefill_chunk;
  const std::int64_t logits = std::int64_t{info.vocabulary} * (wants.sequences + kDraftRows);
  needs.scratch = static_cast<std::int64_t>(sizeof(float)) * (states + logits);
  return needs;
}

GpuPlan PlanOfFreeMemory(const GpuNeeds& needs, const GpuWants& wants, std::int64_t free_bytes) {
  for (auto layers = static_cast<int>(needs.layers.size()); layers > 0; --layers) {
    const std::int64_t tokens = TokensThatFit(needs, wants, layers, free_bytes);
    if (tokens >= wants.context) return {.layers = layers, .pool_tokens = tokens};
  }
  return {};
}

Result<GpuPlan> PlanOfLayers(int layers, const GpuNeeds& needs, const GpuWants& wants,
                             std::int64_t free_bytes) {
  const int taken = std::min(layers, static_cast<int>(needs.layers.size()));
  const std::int64_t tokens = TokensThatFit(needs, wants, taken, free_bytes);
  if (tokens >= wants.context) return GpuPlan{.layers = taken, .pool_tokens = tokens};
  const std::int64_t wanted = ReserveOf(free_bytes) + FixedBytes(needs, wants, taken) +
                              TokenBytes(needs, taken) * wants.context;
  return OutOfMemory(StrCat(taken, " layers with a context of ", wants.context, " tokens take ",
                            wanted, " bytes of the GPU's memory, of which ", free_bytes,
                            " are free; ", PlanOfFreeMemory(needs, wants, free_bytes).layers,
                            " layers fit"));
}

}  // namespace kvcache
