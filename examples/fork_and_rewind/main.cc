// One layer of attention with a history that forks and rewinds.
//
// A first sequence evaluates the beginning of a story and one continuation. A second sequence forks
// after the beginning, without copying a byte, and evaluates another continuation. Then the first
// one goes back and evaluates its continuation again. The result must have the same bits as before,
// or the example fails.
//
// Queries, keys and values are computed from the token by a formula instead of a model.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"

namespace {

using kvcache::Position;
using kvcache::SequenceId;
using kvcache::Status;
using kvcache::TensorView;

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;  // two query heads share each key and value
constexpr int kHeadDim = 32;

// Returns values that depend on the token and on `phase`.
std::vector<float> Project(std::string_view tokens, int heads, float phase) {
  std::vector<float> values;
  for (const char token : tokens) {
    for (int i = 0; i < heads * kHeadDim; ++i) {
      values.push_back(std::sin(phase + static_cast<float>(token) * static_cast<float>(i + 1)));
    }
  }
  return values;
}

class Story {
 public:
  static kvcache::Result<std::unique_ptr<Story>> Make() {
    auto story = std::make_unique<Story>();
    KVCACHE_ASSIGN_OR_RETURN(story->backend_, kvcache::MakeCpuBackend());
    story->cache_ = kvcache::MakeCausalCache();
    KVCACHE_RETURN_IF_ERROR(story->cache_->Init(
        *story->backend_, {.max_sequences = 2, .capacity = 256, .max_batch = 64}));
    return story;
  }

  // Appends `tokens` to the sequence from `position` on; returns the last token's attention
  // output, [kHeadDim, kHeads].
  kvcache::Result<std::vector<float>> Tell(SequenceId sequence, Position position,
                                           std::string_view tokens) {
    const auto batch = static_cast<std::int64_t>(tokens.size());
    batch_.Clear();
    batch_.Add(sequence, position, static_cast<std::int32_t>(batch));
    KVCACHE_RETURN_IF_ERROR(cache_->StartForward(batch_.view(), kvcache::ForwardMode::kCompute));

    const std::vector<float> q = Project(tokens, kHeads, 0.1f);
    const std::vector<float> k = Project(tokens, kKvHeads, 0.2f);
    const std::vector<float> v = Project(tokens, kKvHeads, 0.3f);
    std::vector<float> out(q.size());

    cache_->SetLayer(0);  // a model does this for each of its layers
    KVCACHE_RETURN_IF_ERROR(cache_->Put(View(k, kKvHeads, batch), View(v, kKvHeads, batch)));
    KVCACHE_ASSIGN_OR_RETURN(const kvcache::LayerKv layer, cache_->Storage());
    KVCACHE_RETURN_IF_ERROR(backend_->Attention(layer, View(q, kHeads, batch), cache_->Visible(),
                                                {.scale = 1.0f / std::sqrt(float{kHeadDim})},
                                                View(out, kHeads, batch)));
    return std::vector<float>(out.end() - kHeads * kHeadDim, out.end());
  }

  kvcache::Cache& cache() { return *cache_; }

 private:
  static TensorView View(const std::vector<float>& values, int heads, std::int64_t batch) {
    return TensorView::Dense(values.data(), kvcache::DType::kF32, kHeadDim, heads, batch);
  }

  std::unique_ptr<kvcache::Backend> backend_;
  std::unique_ptr<kvcache::Cache> cache_;
  kvcache::BatchBuilder batch_;
};

void Show(const char* what, const std::vector<float>& output) {
  std::printf("%-34s %+.6f %+.6f %+.6f …\n", what, output[0], output[1], output[2]);
}

Status Run() {
  KVCACHE_ASSIGN_OR_RETURN(const auto story, Story::Make());
  constexpr SequenceId kFirst{0};
  constexpr SequenceId kSecond{1};
  constexpr std::string_view kBeginning = "Mia took the red ball to the ";
  constexpr auto kChoice = static_cast<Position>(kBeginning.size());

  KVCACHE_ASSIGN_OR_RETURN(auto beginning, story->Tell(kFirst, 0, kBeginning));
  Show("the beginning", beginning);
  KVCACHE_ASSIGN_OR_RETURN(const auto garden, story->Tell(kFirst, kChoice, "garden"));
  Show("first sequence: garden", garden);

  // Fork: the second sequence shares the cells of the beginning; no key or value moves.
  const auto bytes = story->cache().memory()->AllocatedBytes();
  KVCACHE_RETURN_IF_ERROR(story->cache().CopyPrefix(kFirst, kSecond, kChoice));
  KVCACHE_ASSIGN_OR_RETURN(const auto river, story->Tell(kSecond, kChoice, "river"));
  Show("second sequence, forked: river", river);
  std::printf("bytes held before and after the fork: %lld, %lld\n", static_cast<long long>(bytes),
              static_cast<long long>(story->cache().memory()->AllocatedBytes()));

  // Rewind: the first sequence drops the continuation and evaluates it again.
  KVCACHE_RETURN_IF_ERROR(story->cache().Remove(kFirst, kChoice, kvcache::kEndOfSequence));
  KVCACHE_ASSIGN_OR_RETURN(const auto again, story->Tell(kFirst, kChoice, "garden"));
  Show("first sequence, rewound: garden", again);

  if (std::memcmp(garden.data(), again.data(), garden.size() * sizeof(float)) != 0) {
    return {kvcache::StatusCode::kInternal, "the bits differ after the rewind"};
  }
  std::puts("the continuation has the same bits after the rewind");
  return Status::Ok();
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "fork_and_rewind: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
