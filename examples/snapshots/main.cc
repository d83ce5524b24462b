// Snapshots and transactions of a cache for a model of two layers, the first with a sliding window.
//
// A prefill takes two snapshots on its way. Other sequences continue from them, one of them in a
// second cache of another size, which imports their bytes. Then a transaction evaluates five letters
// and keeps three. Whatever continues the story must have the same bits as the sequence that never
// left its cache, or the example fails.
//
// Queries, keys and values are computed from the letter by a formula instead of a model.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/snapshot.h"
#include "kvcache/transaction.h"
#include "kvcache/wrapper_cache.h"

namespace {

using kvcache::Position;
using kvcache::SequenceId;
using kvcache::Status;
using kvcache::TensorView;

constexpr int kLayers = 2;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;  // two query heads share each key and value
constexpr int kHeadDim = 32;
constexpr int kWindow = 16;

class Model {
 public:
  // The sizes of two caches may differ. Their snapshots fit both as long as the types, the windows
  // and keys_identity are the same.
  static kvcache::Result<std::unique_ptr<Model>> Make(int sequences, int capacity) {
    auto model = std::make_unique<Model>();
    KVCACHE_ASSIGN_OR_RETURN(model->backend_, kvcache::MakeCpuBackend());
    kvcache::WrapperOptions options;
    options.caches.push_back(
        kvcache::MakeCausalCache({.window = kWindow, .keys_identity = "a formula"}));
    options.caches.push_back(kvcache::MakeCausalCache({.keys_identity = "a formula"}));
    options.cache_of_layer = {0, 1};
    model->cache_ = kvcache::MakeWrapperCache(std::move(options));
    KVCACHE_RETURN_IF_ERROR(model->cache_->Init(
        *model->backend_, {.max_sequences = sequences, .capacity = capacity, .max_batch = 64}));
    return model;
  }

  // Evaluates `text` from `position` of the sequence on. Returns the last layer's attention output of
  // the last letter, [kHeadDim, kHeads].
  kvcache::Result<std::vector<float>> Read(SequenceId sequence, Position position,
                                           std::string_view text) {
    const auto letters = static_cast<std::int64_t>(text.size());
    kvcache::BatchBuilder batch;
    batch.Add(sequence, position, static_cast<std::int32_t>(letters));
    KVCACHE_RETURN_IF_ERROR(cache_->StartForward(batch.view(), kvcache::ForwardMode::kCompute));
    std::vector<float> x;
    for (int layer = 0; layer < kLayers; ++layer) {
      // Later layers depend on what earlier ones saw, as in a model.
      const std::vector<float> q = Project(text, kHeads, 0.1f, x);
      const std::vector<float> k = Project(text, kKvHeads, 0.2f, x);
      const std::vector<float> v = Project(text, kKvHeads, 0.3f, x);
      x.resize(q.size());
      cache_->SetLayer(layer);
      KVCACHE_RETURN_IF_ERROR(cache_->Put(View(k, kKvHeads, letters), View(v, kKvHeads, letters)));
      KVCACHE_ASSIGN_OR_RETURN(const kvcache::LayerKv storage, cache_->Storage());
      KVCACHE_RETURN_IF_ERROR(backend_->Attention(storage, View(q, kHeads, letters),
                                                  cache_->Visible(), {.scale = 0.2f},
                                                  View(x, kHeads, letters)));
    }
    return std::vector<float>(x.end() - kHeads * kHeadDim, x.end());
  }

  kvcache::Cache& cache() { return *cache_; }

 private:
  // Returns values that depend on the letter, on `phase`, and on the outputs of the layer before.
  static std::vector<float> Project(std::string_view text, int heads, float phase,
                                    const std::vector<float>& outputs) {
    std::vector<float> values;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const float seen = outputs.empty() ? 0.0f : outputs[i * kHeads * kHeadDim];
      for (int d = 0; d < heads * kHeadDim; ++d) {
        values.push_back(std::sin(phase + seen + static_cast<float>(text[i] * (d + 1))));
      }
    }
    return values;
  }
  static TensorView View(const std::vector<float>& values, int heads, std::int64_t letters) {
    return TensorView::Dense(values.data(), kvcache::DType::kF32, kHeadDim, heads, letters);
  }

  std::unique_ptr<kvcache::Backend> backend_;
  std::unique_ptr<kvcache::Cache> cache_;
};

void Show(const char* what, const kvcache::Snapshot& snapshot) {
  std::printf("%-28s positions [%d, %d), %lld cells shared, %lld bytes\n", what, snapshot.begin(),
              snapshot.end(), static_cast<long long>(snapshot.HeldCells()),
              static_cast<long long>(snapshot.HeldBytes()));
}

Status Same(const char* what, const std::vector<float>& output,
            const std::vector<float>& expected) {
  std::printf("%-28s %+.6f %+.6f %+.6f …\n", what, output[0], output[1], output[2]);
  if (output == expected) return Status::Ok();
  return {kvcache::StatusCode::kInternal, std::string(what) + ": other bits"};
}

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr std::string_view kSystem = "You tell stories about children. ";
constexpr std::string_view kStory = "Mia took the red ball to the garden";
constexpr std::string_view kEnd = " gate.";
constexpr auto kSystemEnd = static_cast<Position>(kSystem.size());
constexpr auto kStoryEnd = static_cast<Position>(kSystem.size() + kStory.size());

Status Run() {
  KVCACHE_ASSIGN_OR_RETURN(const auto model, Model::Make(2, 256));
  kvcache::Cache& cache = model->cache();

  // Captures: the prefill takes them at these lengths on its way, wherever its passes begin and end.
  // A window keeps only its last tokens, so nobody can take the first one afterwards.
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->ScheduleCaptures(kFirst, 0, {kSystemEnd, kStoryEnd}));
  KVCACHE_RETURN_IF_ERROR(model->Read(kFirst, 0, kSystem.substr(0, 20)).status());
  const std::string rest = std::string(kSystem.substr(20)) + std::string(kStory);
  KVCACHE_RETURN_IF_ERROR(model->Read(kFirst, 20, rest).status());
  KVCACHE_ASSIGN_OR_RETURN(auto captures, cache.snapshots()->TakeCaptures(kFirst));
  Show("captured: the beginning", *captures[0]);
  Show("captured: the story", *captures[1]);
  KVCACHE_ASSIGN_OR_RETURN(const auto expected, model->Read(kFirst, kStoryEnd, kEnd));

  // Restores: another sequence begins after the system prompt, and reads the story itself.
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Restore(kSecond, captures[0].get(), kSystemEnd));
  KVCACHE_RETURN_IF_ERROR(model->Read(kSecond, kSystemEnd, kStory).status());
  KVCACHE_ASSIGN_OR_RETURN(const auto reread, model->Read(kSecond, kStoryEnd, kEnd));
  KVCACHE_RETURN_IF_ERROR(Same("restored, story read again", reread, expected));

  // Merges: both captures as one, which needs no earlier tokens in the sequence that it goes to.
  KVCACHE_ASSIGN_OR_RETURN(const auto whole,
                           cache.snapshots()->MergeSnapshots(captures[0], captures[1]));
  Show("merged", *whole);
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Restore(kSecond, whole.get(), kStoryEnd));
  KVCACHE_ASSIGN_OR_RETURN(const auto restored, model->Read(kSecond, kStoryEnd, kEnd));
  KVCACHE_RETURN_IF_ERROR(Same("restored, story not read", restored, expected));

  // Exports the bytes, which a file could keep, and imports them in a larger cache.
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t size, cache.snapshots()->ExportSize(*whole));
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Export(*whole, bytes));
  KVCACHE_ASSIGN_OR_RETURN(const auto other, Model::Make(5, 1024));
  KVCACHE_ASSIGN_OR_RETURN(const auto imported, other->cache().snapshots()->Import(bytes));
  Show("imported", *imported);
  KVCACHE_RETURN_IF_ERROR(
      other->cache().snapshots()->Restore(SequenceId{4}, imported.get(), kStoryEnd));
  KVCACHE_ASSIGN_OR_RETURN(const auto moved, other->Read(SequenceId{4}, kStoryEnd, kEnd));
  KVCACHE_RETURN_IF_ERROR(Same("in another cache", moved, expected));

  // A transaction: five letters are tried, and three of them stay. Without the Commit none would.
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Restore(kSecond, whole.get(), kStoryEnd));
  {
    KVCACHE_ASSIGN_OR_RETURN(auto round, kvcache::Transaction::Begin(
                                             {&cache}, {{kSecond, kStoryEnd}}, {.max_tokens = 5}));
    KVCACHE_RETURN_IF_ERROR(model->Read(kSecond, kStoryEnd, " game").status());
    KVCACHE_RETURN_IF_ERROR(round.Commit({3}));
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto kept, model->Read(kSecond, kStoryEnd + 3, kEnd.substr(3)));
  return Same("three of five letters kept", kept, expected);
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "snapshots: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
