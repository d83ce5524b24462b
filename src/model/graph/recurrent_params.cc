#include "model/graph/recurrent_params.h"

#include <algorithm>
#include <iterator>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr int kMaxTaps = 32;            // the limit of the convolution kernels
constexpr std::int64_t kMaxDim = 8192;  // far above any model
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxInner = 1 << 22;

// Returns which layers are recurrent, for families that say so by an interval or by a list.
Result<std::vector<bool>> ReadMarks(KeyReader& keys, const LayerParams& params) {
  constexpr int kInterval = 4;
  constexpr std::string_view kList = "attention.recurrent_layers";
  const auto layers = static_cast<std::size_t>(params.layers);
  std::vector<bool> marks;
  if (keys.Has(kList)) {
    keys.Ignore(kList);
    KVCACHE_ASSIGN_OR_RETURN(const GgufBools listed, keys.file().GetBools(keys.Key(kList)));
    if (listed.size() < layers) {
      return Corrupt(
          StrCat(keys.Key(kList), " has ", listed.size(), " values for ", layers, " layers"));
    }
    marks.assign(listed.begin(), listed.end());
    marks.resize(layers);
    return marks;
  }
  KVCACHE_ASSIGN_OR_RETURN(const int interval,
                           keys.IntOr("full_attention_interval", 1 << 12, kInterval));
  for (int i = 0; i < params.layers; ++i) marks.push_back((i + 1) % interval != 0);
  return marks;
}

// Returns whether each layer of the family is one block: a mixer, or a feed-forward part.
bool HasSingleBlocks(std::string_view architecture) {
  return architecture == "mamba2" || architecture.starts_with("nemotron_h");
}

// Marks the recurrent layers. Most families give them 0 KV heads. In falcon-h1 all layers have a state
// beside their attention.
Status MarkLayers(KeyReader& keys, LayerParams* params, RecurrentParams* recurrent) {
  const bool both = keys.architecture() == "falcon-h1";
  const bool singles = HasSingleBlocks(keys.architecture());
  std::vector<bool> marks;
  if (keys.architecture().starts_with("qwen3")) {
    KVCACHE_ASSIGN_OR_RETURN(marks, ReadMarks(keys, *params));
  }
  for (int i = 0; i < params->layers; ++i) {
    int& heads = params->kv_heads[static_cast<std::size_t>(i)];
    if (!marks.empty() && marks[static_cast<std::size_t>(i)]) heads = 0;
    const bool only_ffn = singles && params->ffn[static_cast<std::size_t>(i)] > 0;
    if (both || (heads == 0 && !only_ffn)) recurrent->layers.push_back(i);
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
  constexpr std::string_view kWithStates[] = {"falcon-h1",  "granitehybrid",  "mamba2",
                                              "nemotron_h", "nemotron_h_moe", "qwen35",
                                              "qwen35moe",  "qwen3next"};
  return std::ranges::find(kWithStates, architecture) != std::end(kWithStates);
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
