// Checks text models with cross-attention over images: a token's logits have the same bits in
// chunks of any size, on any number of threads, together with sequences that have other images or
// none, after forks, after truncation and after a removal in the middle.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kvcache/encoder_cache.h"
#include "reference_run.h"

namespace kvcache::exactness::image_test {
namespace {

constexpr int kTokens = 400;
constexpr Position kImageAt = 90, kNextImageAt = 300;
constexpr SequenceId kFirst{0}, kSecond{1}, kThird{2};
constexpr const char* kFlags =
    "--arch mllama --layers 4 --width 96 --heads 4 --kv-heads 2 --head-dim 32 --ffn 128"
    " --vocab 333 --untied";

struct Image {
  std::vector<float> values;
  TensorView states;
};

Image RandomImage(const Engine& engine, int tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Image image;
  image.values.resize(static_cast<std::size_t>(tokens * engine.info().hidden_size));
  for (float& value : image.values) value = normal(random);
  image.states =
      TensorView::Dense(image.values.data(), DType::kF32, engine.info().hidden_size, tokens);
  return image;
}

class ImageExactness : public ::testing::TestWithParam<DType> {  // the cache's type
 protected:
  std::unique_ptr<Engine> Open(const RunOptions& options) {
    return OpenFlags("Images", kFlags, options, GetParam());
  }

  void SetUp() override {
    const auto engine = Open({});
    ASSERT_NE(engine, nullptr);
    tokens_ = RandomTokens(*engine, kTokens, 3);
    tokens_[kImageAt] = engine->info().vocabulary + 2;  // has an embedding but no logit
    image_ = RandomImage(*engine, 270, 1);
    next_image_ = RandomImage(*engine, 40, 2);
    EvaluateAll(*engine, kFirst, 0, kTokens, &expected_);
  }

  // Runs one pass; `images` belong to its entries.
  std::vector<float> Pass(Engine& engine, const std::vector<Entry>& entries,
                          const std::vector<EngineImage>& images) {
    std::vector<std::int32_t> tokens, rows;
    std::vector<Position> positions;
    std::vector<SequenceId> sequences;
    for (const Entry& entry : entries) {
      rows.push_back(static_cast<std::int32_t>(rows.size()));
      tokens.push_back(entry.token);
      positions.push_back(entry.position);
      sequences.push_back(entry.sequence);
    }
    const Status status = engine.Forward(
        {.tokens = tokens, .positions = positions, .sequences = sequences, .images = images});
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> logits(entries.size() * static_cast<std::size_t>(engine.info().vocabulary));
    EXPECT_TRUE(engine.Logits(rows, logits.data()).ok());
    return logits;
  }

  // Returns the end of a pass that begins at `at`: the next image, because an image must begin a
  // pass, or `end`.
  static Position EndOfPass(Position at, Position end) {
    for (const Position image : {kImageAt, kNextImageAt}) {
      if (at < image) return std::min(end, image);
    }
    return end;
  }

  std::vector<EngineImage> ImagesOf(Position first, std::int32_t index = 0) const {
    if (first == kImageAt) return {{.index = index, .states = image_.states, .hash = 1}};
    if (first == kNextImageAt) return {{.index = index, .states = next_image_.states, .hash = 2}};
    return {};
  }

  // Evaluates [begin, end). Compares each row with the reference, or appends it to `to`.
  void EvaluateAll(Engine& engine, SequenceId sequence, Position begin, Position end,
                   std::vector<float>* to = nullptr) {
    for (Position at = begin; at < end;) {
      const Position first = at;
      const Position stop = EndOfPass(first, std::min(end, first + engine.max_batch()));
      std::vector<Entry> entries;
      for (; at < stop; ++at) {
        entries.push_back({sequence, at, tokens_[static_cast<std::size_t>(at)]});
      }
      const std::vector<float> rows = Pass(engine, entries, ImagesOf(first));
      if (to != nullptr) {
        to->insert(to->end(), rows.begin(), rows.end());
        continue;
      }
      for (Position p = first; p < stop; ++p) {
        ExpectSameRow(engine, rows, static_cast<std::size_t>(p - first), expected_,
                      static_cast<std::size_t>(p), "position " + std::to_string(p));
      }
    }
  }

  std::vector<std::int32_t> tokens_;
  Image image_, next_image_;
  std::vector<float> expected_;  // [vocabulary, kTokens]
};

TEST_P(ImageExactness, ChunksAndThreads) {
  for (const int chunk : {1, 7, 512}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE("chunk " + std::to_string(chunk) + ", threads " + std::to_string(threads));
      const auto engine = Open({.threads = threads, .chunk = chunk});
      ASSERT_NE(engine, nullptr);
      EvaluateAll(*engine, kFirst, 0, kTokens);
    }
  }
}

// The second sequence has another image, the third has none.
TEST_P(ImageExactness, InCompany) {
  const auto engine = Open({.threads = 2, .chunk = 200, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  const Image other = RandomImage(*engine, 100, 5);
  std::mt19937 random(3);
  Position reached[3] = {0, 0, 0};
  while (reached[0] < kTokens) {
    std::vector<Entry> entries;
    std::vector<EngineImage> images;
    for (const SequenceId sequence : {kThird, kSecond, kFirst}) {
      Position& at = reached[Index(sequence)];
      const Position stop =
          EndOfPass(at, std::min(kTokens, at + static_cast<Position>(random() % 33)));
      const auto index = static_cast<std::int32_t>(entries.size());
      if (stop > at && sequence == kFirst) {
        for (const EngineImage& image : ImagesOf(at, index)) images.push_back(image);
      }
      if (stop > at && sequence == kSecond && at == kImageAt) {
        images.push_back({.index = index, .states = other.states, .hash = 3});
      }
      for (; at < stop; ++at) {
        entries.push_back({sequence, at, tokens_[static_cast<std::size_t>(at)]});
      }
    }
    if (entries.empty()) continue;
    const std::vector<float> rows = Pass(*engine, entries, images);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].sequence != kFirst) continue;
      ExpectSameRow(*engine, rows, i, expected_, static_cast<std::size_t>(entries[i].position),
                    "position " + std::to_string(entries[i].position));
    }
  }
}

TEST_P(ImageExactness, AfterForksAndGoingBack) {
  const auto engine = Open({.threads = 2, .chunk = 128, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  EvaluateAll(*engine, kFirst, 0, 290);
  for (const Position shared : {17, 90, 91, 256, 289}) {
    SCOPED_TRACE("shared " + std::to_string(shared));
    ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kSecond, shared).ok());
    EvaluateAll(*engine, kSecond, shared, shared + 60);
    // After the second image the cache no longer has the first one, which must be given again.
    const bool replaced = shared + 60 > kNextImageAt;
    const Position from = GoBack(*engine, kSecond, shared + 5);
    ASSERT_EQ(from, replaced ? kImageAt : shared + 5);
    EvaluateAll(*engine, kSecond, from, shared + 60);
  }
  ASSERT_EQ(GoBack(*engine, kFirst, 50), 50);
  EvaluateAll(*engine, kFirst, 50, kTokens);
}

// An image's output comes back with the tokens, also one that a later image has replaced.
TEST_P(ImageExactness, AfterSnapshotsAndTransactions) {
  const auto engine = Open({.threads = 2, .chunk = 128, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  Cache& cache = engine->cache();
  EvaluateAll(*engine, kFirst, 0, 200);
  const auto snapshot = TakeSnapshot(cache, kFirst, 0, 200);
  ASSERT_NE(snapshot, nullptr);
  EvaluateAll(*engine, kFirst, 200, 350);
  const auto other = Open({.threads = 1, .chunk = 50, .sequences = 2});
  ASSERT_NE(other, nullptr);
  RestoreInEveryWay(*engine, *other, kSecond, *snapshot,
                    [&](Engine& to) { EvaluateAll(to, kSecond, 200, 350); });
  auto round = BeginTransaction(cache, {kFirst, 350}, 20);
  ASSERT_TRUE(round.has_value());
  EvaluateAll(*engine, kFirst, 350, 370);
  ASSERT_TRUE(round->Commit({7}).ok());
  EvaluateAll(*engine, kFirst, 357, 380);
}

// A fork that ends between two images lacks the first image as well.
TEST_P(ImageExactness, AForkBetweenImagesGoesBackToTheFirst) {
  const auto engine = Open({.threads = 2, .chunk = 128, .sequences = 2});
  ASSERT_NE(engine, nullptr);
  EvaluateAll(*engine, kFirst, 0, 350);
  ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kSecond, 200).ok());
  EXPECT_FALSE(engine->cache().CanResume(kSecond, 200));
  ASSERT_EQ(GoBack(*engine, kSecond, 200), kImageAt);
  EvaluateAll(*engine, kSecond, kImageAt, kTokens);
  EvaluateAll(*engine, kFirst, 350, kTokens);
}

// After a removal, later tokens have the same bits in any chunks, and still depend on the image.
TEST_P(ImageExactness, AfterARemovalInTheMiddle) {
  std::vector<float> once;
  for (const int chunk : {1, 64}) {
    const auto engine = Open({.threads = 2, .chunk = chunk});
    ASSERT_NE(engine, nullptr);
    EvaluateAll(*engine, kFirst, 0, 250);
    ASSERT_TRUE(engine->cache().Remove(kFirst, 20, 60).ok());
    std::vector<float> rows;
    for (Position p = 210; p < 260;) {
      std::vector<Entry> entries;
      for (const Position first = p; p < std::min(260, first + chunk); ++p) {
        entries.push_back({kFirst, p, tokens_[static_cast<std::size_t>(p)]});
      }
      const std::vector<float> some = Pass(*engine, entries, {});
      rows.insert(rows.end(), some.begin(), some.end());
    }
    if (once.empty()) once = rows;
    ASSERT_EQ(rows.size(), once.size());
    EXPECT_EQ(std::memcmp(rows.data(), once.data(), rows.size() * sizeof(float)), 0);
    EXPECT_TRUE(engine->cache().Encoder()->EncoderCached(kFirst));
    ASSERT_TRUE(engine->cache().Remove(kFirst, 40, 60).ok());  // contains the image's token
    EXPECT_FALSE(engine->cache().Encoder()->EncoderCached(kFirst));
  }
}

TEST_P(ImageExactness, AnImageInTheMiddleOfAPassIsRefused) {
  const auto engine = Open({});
  ASSERT_NE(engine, nullptr);
  const std::vector<std::int32_t> tokens = {5, 6, 7};
  const std::vector<Position> positions = {0, 1, 2};
  const std::vector<SequenceId> sequences(3, kFirst);
  const std::vector<EngineImage> images = {{.index = 2, .states = image_.states, .hash = 1}};
  EXPECT_EQ(
      engine
          ->Forward(
              {.tokens = tokens, .positions = positions, .sequences = sequences, .images = images})
          .message(),
      "an image is at position 2 but its sequence begins at 0 in this pass; begin a pass at the "
      "image");
}

INSTANTIATE_TEST_SUITE_P(CacheTypes, ImageExactness,
                         ::testing::Values(DType::kF32, DType::kQ8_0, DType::kQ4_0),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

}  // namespace
}  // namespace kvcache::exactness::image_test
