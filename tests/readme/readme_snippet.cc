// Runs the README's C++ snippet. Provides the names that it uses: a batch of 400 tokens of a model
// of two layers.
#include <cstdio>
#include <numeric>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"

namespace {

constexpr int kBatch = 400;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 16;

kvcache::TensorView View(std::vector<float>& values, int heads) {
  values.assign(static_cast<std::size_t>(kHeadDim * heads * kBatch), 0.5f);
  return kvcache::TensorView::Dense(values.data(), kvcache::DType::kF32, kHeadDim, heads, kBatch);
}

kvcache::Status Snippet() {
  constexpr int layers = 2;
  constexpr float scale = 0.25f;
  constexpr kvcache::SequenceId a{0};
  constexpr kvcache::SequenceId b{1};
  std::vector<kvcache::Position> positions(kBatch);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<kvcache::SequenceId> sequences(kBatch, a);
  std::vector<float> q_values, k_values, v_values, out_values;
  const auto q = View(q_values, kHeads), k = View(k_values, kKvHeads);
  const auto v = View(v_values, kKvHeads), out = View(out_values, kHeads);

#include "readme_snippet.inc"

  if (!cache->CanResume(a, 200) || cache->CanResume(a, 201) || !cache->CanResume(b, 300)) {
    return {kvcache::StatusCode::kInternal, "the sequences do not hold 200 and 300 tokens"};
  }
  return kvcache::Status::Ok();
}

}  // namespace

int main() {
  const kvcache::Status status = Snippet();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
