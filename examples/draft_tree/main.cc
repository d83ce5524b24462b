// One layer of attention over a tree of drafts.
//
// Several continuations of a story are evaluated in one pass, as a tree: equal beginnings are
// shared. Each token sees the path that leads to it and no other draft. One path is accepted and
// the others are dropped. The attention output of the accepted path's end must have the same bits
// as when the path is evaluated alone, or the example fails.
//
// Queries, keys and values are computed from the letter by a formula instead of a model.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
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
constexpr SequenceId kStory{0};
constexpr SequenceId kAgain{1};

// The letters of one pass and, for drafts, the parent of each.
struct Letters {
  std::string text;
  std::vector<Position> positions;
  std::vector<std::int32_t> parents;

  static Letters Plain(std::string_view text, Position position) {
    Letters letters{std::string(text), {}, {}};
    for (std::size_t i = 0; i < text.size(); ++i) letters.positions.push_back(position++);
    return letters;
  }

  // Adds a continuation after `length` letters and shares equal beginnings with earlier ones.
  // Returns the index of its last letter.
  std::int32_t Guess(std::string_view guess, Position length) {
    std::int32_t parent = -1;
    for (const char letter : guess) {
      std::int32_t found = -1;
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(text.size()); ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (parents[at] == parent && text[at] == letter) found = i;
      }
      if (found < 0) {
        found = static_cast<std::int32_t>(text.size());
        text += letter;
        parents.push_back(parent);
        positions.push_back(length);
      }
      parent = found;
      ++length;
    }
    return parent;
  }
};

class Layer {
 public:
  static kvcache::Result<std::unique_ptr<Layer>> Make() {
    auto layer = std::make_unique<Layer>();
    KVCACHE_ASSIGN_OR_RETURN(layer->backend_, kvcache::MakeCpuBackend());
    layer->cache_ = kvcache::MakeCausalCache();
    KVCACHE_RETURN_IF_ERROR(layer->cache_->Init(
        *layer->backend_, {.max_sequences = 2, .capacity = 256, .max_batch = 64}));
    return layer;
  }

  // Returns every letter's attention output, [kHeadDim, kHeads, letters].
  kvcache::Result<std::vector<float>> Pass(SequenceId sequence, const Letters& letters) {
    const std::vector<SequenceId> sequences(letters.text.size(), sequence);
    KVCACHE_RETURN_IF_ERROR(cache_->StartForward(
        {.positions = letters.positions, .sequences = sequences, .parents = letters.parents},
        kvcache::ForwardMode::kCompute));
    std::vector<float> q = Project(letters.text, kHeads, 0.1f);
    std::vector<float> k = Project(letters.text, kKvHeads, 0.2f);
    std::vector<float> v = Project(letters.text, kKvHeads, 0.3f);
    std::vector<float> out(q.size());
    const auto view = [&](std::vector<float>& values, int heads) {
      return TensorView::Dense(values.data(), kvcache::DType::kF32, kHeadDim, heads,
                               static_cast<std::int64_t>(letters.text.size()));
    };
    cache_->SetLayer(0);  // a model does this for each of its layers
    KVCACHE_RETURN_IF_ERROR(cache_->Put(view(k, kKvHeads), view(v, kKvHeads)));
    KVCACHE_ASSIGN_OR_RETURN(const kvcache::LayerKv storage, cache_->Storage());
    KVCACHE_RETURN_IF_ERROR(backend_->Attention(storage, view(q, kHeads), cache_->Visible(),
                                                {.scale = 1.0f / std::sqrt(float{kHeadDim})},
                                                view(out, kHeads)));
    return out;
  }

  kvcache::Cache& cache() { return *cache_; }

 private:
  // Returns values that depend on the letter and on `phase`.
  static std::vector<float> Project(std::string_view text, int heads, float phase) {
    std::vector<float> values;
    for (const char letter : text) {
      for (int i = 0; i < heads * kHeadDim; ++i) {
        values.push_back(std::sin(phase + static_cast<float>(letter) * static_cast<float>(i + 1)));
      }
    }
    return values;
  }

  std::unique_ptr<kvcache::Backend> backend_;
  std::unique_ptr<kvcache::Cache> cache_;
};

const float* RowOf(const std::vector<float>& outputs, std::size_t letter) {
  return outputs.data() + letter * kHeads * kHeadDim;
}

void Show(const std::string& what, const float* row) {
  std::printf("%-22s %+.6f %+.6f %+.6f …\n", what.c_str(), row[0], row[1], row[2]);
}

Status Run() {
  KVCACHE_ASSIGN_OR_RETURN(const auto layer, Layer::Make());
  constexpr std::string_view kBeginning = "Mia took the red ball to the ";
  constexpr auto kLength = static_cast<Position>(kBeginning.size());
  KVCACHE_RETURN_IF_ERROR(layer->Pass(kStory, Letters::Plain(kBeginning, 0)).status());

  Letters guesses;
  std::vector<std::int32_t> last;
  const std::vector<std::string> words = {"garden", "garage", "river"};
  for (const std::string& word : words) last.push_back(guesses.Guess(word, kLength));
  KVCACHE_ASSIGN_OR_RETURN(const auto outputs, layer->Pass(kStory, guesses));
  std::size_t letters = 0;
  for (const std::string& word : words) letters += word.size();
  std::printf("%zu guesses, %zu letters in all, evaluated as %zu\n", words.size(), letters,
              guesses.text.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    Show("guess: " + words[i], RowOf(outputs, static_cast<std::size_t>(last[i])));
  }

  // Accepts "garage". The story continues as if no other guess had been evaluated.
  KVCACHE_RETURN_IF_ERROR(layer->cache().AcceptDrafts(std::span(last).subspan(1, 1)));
  const Letters more = Letters::Plain(".", kLength + 6);
  KVCACHE_ASSIGN_OR_RETURN(const auto kept, layer->Pass(kStory, more));
  Show("kept: garage.", RowOf(kept, 0));

  const std::string whole = std::string(kBeginning) + "garage.";
  KVCACHE_ASSIGN_OR_RETURN(const auto alone, layer->Pass(kAgain, Letters::Plain(whole, 0)));
  Show("evaluated alone: garage.", RowOf(alone, whole.size() - 1));
  const std::size_t row = kHeads * kHeadDim * sizeof(float);
  if (std::memcmp(RowOf(kept, 0), RowOf(alone, whole.size() - 1), row) != 0 ||
      std::memcmp(RowOf(outputs, static_cast<std::size_t>(last[1])), RowOf(alone, whole.size() - 2),
                  row) != 0) {
    return {kvcache::StatusCode::kInternal, "the bits differ from those of the path alone"};
  }
  std::puts("the path evaluated alone has the same bits");
  return Status::Ok();
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "draft_tree: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
