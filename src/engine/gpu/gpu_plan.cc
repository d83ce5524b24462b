#include "engine/gpu/gpu_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/strings.h"
#include "model/layer_memory.h"

namespace kvcache {
namespace {

// Memory that stays free: for kernels, other programs, and what the driver cannot use between allocations.
std::int64_t ReserveOf(std::int64_t free_bytes) {
  return (std::int64_t{256} << 20) + free_bytes / 32;
}
// What the backend takes for a call at most: cells on their way to the host, and partial results of attention
// (src/backend/cuda/kv/transfer.cc, attention/attention_tasks.h).
constexpr std::int64_t kTransferBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMostResultBytes = std::int64_t{256} << 20;
// Memory of calls grows by doubling.
constexpr std::int64_t kGrowth = 2;
constexpr std::int64_t kSplitTokens = 256;  // of a history; each leaves a partial result
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
  std::int64_t bytes = needs.behind + needs.scratch + needs.calls;
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

GpuPlan PlanOf(const GpuNeeds& needs, const GpuWants& wants, int layers, std::int64_t tokens) {
  return {.layers = layers,
          .pool_tokens = tokens,
          .fixed_bytes = FixedBytes(needs, wants, layers),
          .token_bytes = TokenBytes(needs, layers)};
}

std::int64_t BytesOfTensor(const GgufTensor& tensor) {
  return static_cast<std::int64_t>(tensor.bytes.size());
}

// The layers behind the model's are draft heads, which count only if one is used.
void AddModel(const GgufFile& file, GpuNeeds& needs) {
  bool has_output = false;
  std::int64_t embedding = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    if (IsIgnored(name)) continue;
    if (name == "output.weight") has_output = true;
    if (name == "token_embd.weight") embedding = BytesOfTensor(tensor);
    if (const auto layer = LayerOf(name); layer) {
      if (static_cast<std::size_t>(*layer) >= needs.layers.size()) continue;
      needs.layers[static_cast<std::size_t>(*layer)].weights += BytesOfTensor(tensor);
    } else {
      (IsBefore(name) ? needs.before : needs.behind) += BytesOfTensor(tensor);
    }
  }
  if (!has_output) needs.behind += embedding;  // the embedding is the output matrix too
}

// A head behind the layers of a model's file, or a file that has nothing else.
void AddHead(const GgufFile& file, GpuNeeds& needs) {
  const bool is_whole = HasOnlyDraftHead(file);
  for (const GgufTensor& tensor : file.tensors()) {
    const auto layer = LayerOf(tensor.name);
    const bool is_behind = layer && static_cast<std::size_t>(*layer) >= needs.layers.size();
    if (is_whole || is_behind) needs.behind += BytesOfTensor(tensor);
  }
}

// An adapter's matrices are beside those of their layer.
void AddAdapter(const GgufFile& file, GpuNeeds& needs) {
  for (const GgufTensor& tensor : file.tensors()) {
    const auto layer = LayerOf(tensor.name);
    const bool is_layers = layer && static_cast<std::size_t>(*layer) < needs.layers.size();
    (is_layers ? needs.layers[static_cast<std::size_t>(*layer)].weights : needs.behind) +=
        BytesOfTensor(tensor);
  }
}

// Returns the query heads of the layer with the most; 0: the file does not say.
std::int64_t QueryHeads(const GgufFile& file) {
  const auto architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return 0;
  const std::string key = StrCat(*architecture, ".attention.head_count");
  if (const auto one = file.GetInt(key); one.ok()) return *one;
  std::int64_t most = 0;
  if (const auto each = file.GetInts(key); each.ok()) {
    for (std::size_t i = 0; i < each->size(); ++i) most = std::max<std::int64_t>(most, (*each)[i]);
  }
  return most;
}

// Returns a bound of the partial results that attention leaves in one layer: those of a pass with a token of each
// sequence, or of a prompt's tokens.
std::int64_t ResultBytes(const GgufFile& file, const ModelInfo& info, const GpuWants& wants) {
  std::int64_t widest = 0;
  for (const LayerMemory& memory : info.memory) {
    if (memory.kind == LayerMemory::Kind::kRecurrent) continue;
    widest = std::max<std::int64_t>(widest, memory.kv.v_dim);
  }
  if (widest == 0) return 0;
  constexpr std::int64_t kTail = 31;  // floats beside the sums, and of rounding
  const std::int64_t row =
      QueryHeads(file) * (widest + kTail) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t splits = wants.context / kSplitTokens + 1;
  return std::min(row * splits * std::max(wants.sequences, wants.prefill_chunk), kMostResultBytes);
}

}  // namespace

GpuNeeds NeedsOf(const GpuFiles& files, const ModelInfo& info, const GpuWants& wants) {
  GpuNeeds needs;
  needs.layers.resize(static_cast<std::size_t>(info.layers));
  AddModel(files.model, needs);
  if (files.head != nullptr) AddHead(*files.head, needs);
  for (const GgufFile* const adapter : files.adapters) AddAdapter(*adapter, needs);
  for (const LayerMemory& memory : info.memory) {
    if (memory.layer < 0 || needs.layers.empty()) continue;
    // A draft head's keys and values are where the last layer's are.
    const auto at = std::min(static_cast<std::size_t>(memory.layer), needs.layers.size() - 1);
    needs.layers[at].per_token += BytesPerToken(memory, wants.k_type, wants.v_type);
    needs.layers[at].per_sequence += BytesPerSequence(memory, wants.k_type, wants.v_type);
  }
  const std::int64_t states = kHiddenViews * std::int64_t{info.hidden_size} * wants.prefill_chunk;
  const std::int64_t logits = std::int64_t{info.vocabulary} * (wants.sequences + kDraftRows);
  needs.scratch = static_cast<std::int64_t>(sizeof(float)) * (states + logits);
  needs.calls = kGrowth * std::max(kTransferBytes, ResultBytes(files.model, info, wants));
  return needs;
}

std::int64_t PoolTokens(const GpuPlan& plan, std::int64_t wanted, std::int64_t host_tokens) {
  std::int64_t tokens = std::min(std::max(wanted, plan.pool_tokens / 2), plan.pool_tokens);
  if (host_tokens > 0) tokens = std::min(tokens, host_tokens);
  return tokens;
}

GpuPlan PlanOfFreeMemory(const GpuNeeds& needs, const GpuWants& wants, std::int64_t free_bytes) {
  for (auto layers = static_cast<int>(needs.layers.size()); layers > 0; --layers) {
    const std::int64_t tokens = TokensThatFit(needs, wants, layers, free_bytes);
    if (tokens >= wants.context) return PlanOf(needs, wants, layers, tokens);
  }
  return {};
}

Result<GpuPlan> PlanOfLayers(int layers, const GpuNeeds& needs, const GpuWants& wants,
                             std::int64_t free_bytes) {
  const int taken = std::min(layers, static_cast<int>(needs.layers.size()));
  const std::int64_t tokens = TokensThatFit(needs, wants, taken, free_bytes);
  if (tokens >= wants.context) return PlanOf(needs, wants, taken, tokens);
  const std::int64_t wanted = ReserveOf(free_bytes) + FixedBytes(needs, wants, taken) +
                              TokenBytes(needs, taken) * wants.context;
  return OutOfMemory(StrCat(taken, " layers with a context of ", wants.context, " tokens take ",
                            wanted, " bytes of the GPU's memory, of which ", free_bytes,
                            " are free; ", PlanOfFreeMemory(needs, wants, free_bytes).layers,
                            " layers fit"));
}

}  // namespace kvcache
