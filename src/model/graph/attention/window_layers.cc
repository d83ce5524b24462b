#include "model/graph/attention/window_layers.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kWindow = "attention.sliding_window";
constexpr std::string_view kPattern = "attention.sliding_window_pattern";

constexpr int kRequired = -1;

// The defaults of an architecture for keys that a file lacks.
struct Rule {
  std::string_view architecture;
  int window;  // 0: none; kRequired: the key must be present
  int period;  // every period-th layer has no window; 0: all have one; kRequired: as for window
  bool full_first = false;  // the first layer of each period has no window, in place of the last
};
constexpr Rule kRules[] = {
    {"cohere2", kRequired, 4},
    {"exaone4", 4096, 4},
    {"gemma2", 4096, 2},
    {"gemma3", 0, 6},
    {"gemma-embedding", kRequired, 6},
    {"gemma3n", kRequired, 5},
    {"gemma4", kRequired, kRequired},
    {"gemma4-assistant", kRequired, kRequired},
    {"gpt-oss", kRequired, 2},
    {"lfm2", 0, 0},
    {"llama", 0, 0},
    {"modern-bert", 0, 3, true},
    {"olmo2", 0, 4},
    {"phi3", 0, 0},
};

Result<int> ReadWindow(KeyReader& keys, const Rule& rule) {
  if (rule.window == kRequired) return keys.Int(kWindow, 1 << 30);
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t window,
                           keys.file().GetIntOr(keys.Key(kWindow), rule.window));
  if (window == 0) keys.Ignore(kWindow);
  if (window == 0 || !keys.Has(kWindow)) return static_cast<int>(window);
  return keys.Int(kWindow, 1 << 30);
}

Result<std::vector<bool>> ReadArray(KeyReader& keys, int layers) {
  KVCACHE_ASSIGN_OR_RETURN(const GgufBools windowed, keys.file().GetBools(keys.Key(kPattern)));
  if (windowed.size() == static_cast<std::size_t>(layers)) {
    return std::vector<bool>(windowed.begin(), windowed.end());
  }
  return Corrupt(
      StrCat(keys.Key(kPattern), " has ", windowed.size(), " values for ", layers, " layers"));
}

Result<std::vector<bool>> ReadPattern(KeyReader& keys, const Rule& rule, int layers) {
  const GgufEntry* const entry = keys.file().Find(keys.Key(kPattern));
  std::int64_t period = rule.period;
  if (entry == nullptr && period == kRequired) {
    return Corrupt(keys.Key(kPattern) + " is missing");
  }
  if (entry != nullptr) {
    keys.Ignore(kPattern);
    if (entry->type == GgufType::kArray) return ReadArray(keys, layers);
    KVCACHE_ASSIGN_OR_RETURN(period, keys.file().GetInt(entry->key));
    if (period < 0) {
      return Corrupt(StrCat(entry->key, " is ", period, "; must be at least 0"));
    }
  }
  std::vector<bool> windowed;
  windowed.reserve(static_cast<std::size_t>(layers));
  const std::int64_t full = rule.full_first ? 0 : period - 1;  // the layer of a period without one
  for (int i = 0; i < layers; ++i) windowed.push_back(period == 0 || i % period != full);
  return windowed;
}

}  // namespace

Result<std::vector<AttentionSpan>> ReadAttentionSpans(KeyReader& keys, const LayerParams& params) {
  std::vector<AttentionSpan> spans(static_cast<std::size_t>(params.layers));
  const auto* const rule = std::ranges::find(kRules, keys.architecture(), &Rule::architecture);
  if (rule == std::end(kRules)) return spans;
  KVCACHE_ASSIGN_OR_RETURN(const int window, ReadWindow(keys, *rule));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<bool> windowed,
                           ReadPattern(keys, *rule, params.layers));
  for (std::size_t i = 0; i < spans.size(); ++i) spans[i].window = windowed[i] ? window : 0;
  return spans;
}

}  // namespace kvcache
