#include "support/cache_reference.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvcache::testing {
namespace {

constexpr KvShape kShapes[kTestLayers] = {
    {.kv_heads = 2, .k_dim = 4, .v_dim = 3},
    {.kv_heads = 1, .k_dim = 2, .v_dim = 4},
    {.kv_heads = 3, .k_dim = 3, .v_dim = 1, .v_in_k = true},
};

}  // namespace

const KvShape& TestShape(int layer) {
  return kShapes[layer];
}

DType ValueType(const ReferenceSetup& setup, int layer) {
  return TestShape(layer).v_in_k ? setup.options.k_type : setup.options.v_type;
}

bool PutsLayer(const ScriptStep& step, int layer) {
  return step.layers.empty() ||
         std::find(step.layers.begin(), step.layers.end(), layer) != step.layers.end();
}

StatusCode CheckAcceptedDrafts(const std::vector<int>& drafts, const std::vector<int>& last) {
  std::set<int> sequences;
  bool good = !drafts.empty();
  for (const int token : last) {
    good = good && token >= 0 && token < static_cast<int>(drafts.size()) &&
           sequences.insert(drafts[token]).second;
  }
  return good ? StatusCode::kOk : StatusCode::kInvalidArgument;
}

std::string At(int sequence, Position position) {
  return "sequence " + std::to_string(sequence) + " position " + std::to_string(position);
}

std::vector<float> RoundedAll(DType type, std::vector<float> values) {
  for (float& value : values) value = Rounded(type, value);
  return values;
}

}  // namespace kvcache::testing
