#include "model/graph/recurrent_params.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr int kMaxTaps = 32;            // the limit of the convolution kernels
constexpr std::int64_t kMaxDim = 8192;  // far above any model
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxInner = 1 << 22;

// Marks the recurrent layers, by interval or by their number of KV heads.
Status MarkLayers(KeyReader& keys, LayerParams* params, RecurrentParams* recurrent) {
  constexpr int kInterval = 4;
  const bool by_interval = keys.Key("") == "qwen3next.";
  int interval = 0;
  if (by_interval) {
    KVCACHE_ASSIGN_OR_RETURN(interval, keys.IntOr("full_attention_interval", 1 << 12, kInterval));
  }
  for (int i = 0; i < params->layers; ++i) {
    int& heads = params->kv_heads[static_cast<std::size_t>(i)];
    if (by_interval && (i + 1) % interval != 0) heads = 0;
    if (heads == 0) recurrent->layers.push_back(i);
  }
  return Status::Ok();
}

Status ReadState(KeyReader& keys, RecurrentParams* recurrent) {
  KVCACHE_ASSIGN_OR_RETURN(recurrent->taps, keys.Int("ssm.conv_kernel", kMaxTaps));
  KVCACHE_ASSIGN_OR_RETURN(recurrent->k_dim, keys.Int("ssm.state_size", kMaxDim));
  KVCACHE_ASSIGN_OR_RETURN(recurrent->heads, keys.Int("ssm.time_step_rank", kMaxHeads));
  KVCACHE_ASSIGN_OR_RETURN(recurrent->groups, keys.Int("ssm.group_count", recurrent->heads));
  KVCACHE_ASSIGN_OR_RETURN(const int inner, keys.Int("ssm.inner_size", kMaxInner));
  if (inner % recurrent->heads != 0 || recurrent->heads % recurrent->groups != 0) {
    return Corrupt(StrCat(keys.Key("ssm.inner_size"), " is ", inner, "; must be a multiple of the ",
                          recurrent->heads, " heads, and those of the ", recurrent->groups,
                          " groups"));
  }
  recurrent->v_dim = inner / recurrent->heads;
  recurrent->channels = inner + 2 * recurrent->key_size();
  return Status::Ok();
}

bool HasStates(std::string_view architecture) {
  return architecture == "qwen3next" || architecture == "granitehybrid";
}

}  // namespace

Result<RecurrentParams> ReadRecurrentParams(KeyReader& keys, LayerParams* params) {
  RecurrentParams recurrent;
  const bool convolves = keys.architecture() == "lfm2" || keys.architecture() == "lfm2moe";
  if (!convolves && !HasStates(keys.architecture())) return recurrent;
  KVCACHE_RETURN_IF_ERROR(MarkLayers(keys, params, &recurrent));
  if (convolves) {
    KVCACHE_ASSIGN_OR_RETURN(recurrent.taps, keys.Int("shortconv.l_cache", kMaxTaps));
    recurrent.channels = params->hidden_size;
  } else {
    KVCACHE_RETURN_IF_ERROR(ReadState(keys, &recurrent));
  }
  if (recurrent.taps >= 2) return recurrent;
  return Corrupt(StrCat("the convolution has ", recurrent.taps, " taps; must have at least 2"));
}

}  // namespace kvcache
