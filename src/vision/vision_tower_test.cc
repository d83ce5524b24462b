#include "vision/vision_tower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/split/split_backend.h"
#include "model/load/rewritten_testing.h"
#include "support/remote_backend.h"
#include "vision/tower_testing.h"

namespace kvcache::vision {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using vision_test::CpuOf;
using vision_test::Embeddings;
using vision_test::LoadTower;
using vision_test::PictureOf;
using vision_test::TowerFile;
using vision_test::VisionFileShape;

// A tower, and pictures of sizes that it takes.
struct TowerCase {
  std::string name;
  VisionFileShape shape;
  std::vector<image::PictureSize> sizes;
};

class Towers : public ::testing::TestWithParam<TowerCase> {
 protected:
  std::vector<PreparedPicture> Pictures(const VisionSettings& settings) const {
    std::vector<PreparedPicture> pictures;
    std::uint32_t seed = 0;
    for (const image::PictureSize size : GetParam().sizes) {
      for (int i = 0; i < 2; ++i) {
        pictures.push_back(PictureOf(settings, size.width, size.height, ++seed));
      }
    }
    return pictures;
  }
  TowerFile file_{GetParam().shape};
};

std::ptrdiff_t Values(const VisionTower& tower) {
  return tower.embedding_width();
}

TEST_P(Towers, GiveTheSameBitsWithAnyThreads) {
  const auto one = CpuOf(1);
  const auto tower = LoadTower(file_, *one);
  for (const int threads : {2, 5}) {
    const auto more = CpuOf(threads);
    const auto other = LoadTower(file_, *more);
    for (const PreparedPicture& picture : Pictures(tower->settings())) {
      EXPECT_EQ(Embeddings(*tower, picture), Embeddings(*other, picture));
    }
  }
}

TEST_P(Towers, GiveTheSameBitsInAnyOrderOfPictures) {
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file_, *backend);
  const std::vector<PreparedPicture> pictures = Pictures(tower->settings());
  std::vector<std::vector<float>> alone;
  for (const PreparedPicture& picture : pictures) {
    alone.push_back(Embeddings(*LoadTower(file_, *backend), picture));
  }
  EXPECT_NE(alone[0], alone[1]);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    EXPECT_EQ(Embeddings(*tower, pictures[i]), alone[i]);
  }
  for (std::size_t i = pictures.size(); i-- > 0;) {
    EXPECT_EQ(Embeddings(*tower, pictures[i]), alone[i]);
  }
}

TEST_P(Towers, GiveTheSameBitsInStepsOfAnySize) {
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file_, *backend);
  const PreparedPicture picture = Pictures(tower->settings()).back();
  const std::vector<float> expected = Embeddings(*tower, picture);
  for (const int rows : {1, 7, 64, VisionTower::kMaxStepRows}) {
    ASSERT_TRUE(tower->Begin(picture).ok());
    while (!tower->done()) ASSERT_TRUE(tower->Step(rows).ok());
    EXPECT_TRUE(std::ranges::equal(tower->embeddings(), expected)) << rows;
  }
}

TEST_P(Towers, GiveTheSameBitsInMemoryOfAnotherMachine) {
  const auto cpu = CpuOf(1);
  const auto expected_of = LoadTower(file_, *cpu);
  const PreparedPicture picture = Pictures(expected_of->settings()).back();
  const std::vector<float> expected = Embeddings(*expected_of, picture);
  testing::RemoteBackend remote(CpuOf(1));
  EXPECT_EQ(Embeddings(*LoadTower(file_, remote), picture), expected);
  SplitBackend split(std::make_unique<testing::RemoteBackend>(CpuOf(1)), CpuOf(1), 1);
  const auto tower = LoadTower(file_, split);
  ASSERT_TRUE(split.EnterLayer(1, TensorView{}).ok());  // as a decoder leaves it
  EXPECT_EQ(Embeddings(*tower, picture), expected);
}

TEST_P(Towers, GiveTheirMemoryBackAndTheSameBitsAfterwards) {
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file_, *backend);
  for (const PreparedPicture& picture : Pictures(tower->settings())) {
    const auto expected = Embeddings(*tower, picture);
    tower->Release();
    EXPECT_EQ(tower->ActivationBytes(), 0);
    EXPECT_FALSE(tower->done());
    ASSERT_TRUE(tower->Begin(picture).ok());
    ASSERT_TRUE(tower->Step(8).ok());
    tower->Release();  // in the middle of the picture
    EXPECT_EQ(tower->ActivationBytes(), 0);
    EXPECT_EQ(Embeddings(*tower, picture), expected);
  }
}

TEST_P(Towers, SeeEveryPatch) {
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file_, *backend);
  PreparedPicture picture = Pictures(tower->settings()).back();
  const std::vector<float> before = Embeddings(*tower, picture);
  picture.pixels.rgb.back() ^= 0x80;
  const std::vector<float> after = Embeddings(*tower, picture);
  // The last pixel changes the first token and the last one.
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + Values(*tower), after.begin()));
  EXPECT_FALSE(std::equal(before.rbegin(), before.rbegin() + Values(*tower), after.rbegin()));
}

VisionFileShape Qwen25() {
  return {.projector = "qwen2.5vl_merger", .patch_size = 14, .merge = 2};
}
VisionFileShape Qwen3() {
  return {.projector = "qwen3vl_merger",
          .image_size = 48,
          .patch_size = 8,
          .merge = 2,
          .min_pixels = 256};
}
VisionFileShape Gemma4() {
  return {.projector = "gemma4v",
          .image_size = 256,
          .patch_size = 4,
          .layers = 2,
          .merge = 3,
          .limits = 2};
}
VisionFileShape Pixtral(int merge) {
  return {.projector = "pixtral", .image_size = 400, .patch_size = 8, .merge = merge};
}

INSTANTIATE_TEST_SUITE_P(
    All, Towers,
    ::testing::Values(
        TowerCase{"gemma3",
                  {.image_size = 96, .patch_size = 4, .merge = 4, .type = DType::kQ8_0},
                  {{96, 96}}},
        TowerCase{"gemma3_f16",
                  {.image_size = 48,
                   .width = 72,
                   .heads = 1,
                   .merge = 3,
                   .type = DType::kF16,
                   .swapped_ffn = true},
                  {{48, 48}}},
        // Windows of 112 pixels: one, and twelve of which six are smaller.
        TowerCase{"qwen25vl", Qwen25(), {{84, 112}, {280, 364}}},
        TowerCase{"qwen3vl", Qwen3(), {{48, 48}, {16, 112}, {208, 192}}},
        TowerCase{"pixtral", Pixtral(1), {{8, 40}, {200, 192}}},
        TowerCase{"gemma4", Gemma4(), {{192, 204}}},
        TowerCase{"mistral3", Pixtral(2), {{16, 48}, {400, 208}}}),
    [](const ::testing::TestParamInfo<TowerCase>& test) { return test.param.name; });

TEST(VisionTower, RefusesPicturesOfOtherTowers) {
  const TowerFile file({});
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file, *backend);
  const PreparedPicture good = PictureOf(tower->settings(), 64, 64, 1);
  const auto refused = [&](const PreparedPicture& other) {
    const Status status = tower->Begin(other);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("must be one that Prepare made for this tower"));
    EXPECT_FALSE(tower->Step(1).ok());
  };
  PreparedPicture picture = good;
  picture.pixels.rgb.pop_back();
  refused(picture);
  picture = good;
  picture.layout.token_count = 5;
  refused(picture);
  picture = good;
  picture.layout.patches = {4, 16};
  refused(picture);
  picture = good;
  picture.layout.tokens = {0, 0};
  refused(picture);
  // As large as another tower's, with a layout that agrees.
  picture.pixels = {32, 64, std::vector<std::uint8_t>(32 * 64 * 3)};
  picture.layout = {{32, 64}, {4, 8}, {1, 2}, 2};
  refused(picture);
  std::vector<float> rows(3);
  EXPECT_THAT(tower->Embed(good, rows).message(), HasSubstr("must be 160"));
}

TEST(VisionTower, StepsNeedAPictureAndASize) {
  const TowerFile file({});
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file, *backend);
  EXPECT_THAT(tower->Step(1).message(), HasSubstr("without a picture"));
  ASSERT_TRUE(tower->Begin(PictureOf(tower->settings(), 64, 64, 1)).ok());
  EXPECT_THAT(tower->Step(0).message(), HasSubstr("a step of 0 patches; must be 1 to 512"));
  EXPECT_FALSE(tower->Step(513).ok());
  while (!tower->done()) ASSERT_TRUE(tower->Step(512).ok());
  EXPECT_THAT(tower->Step(1).message(), HasSubstr("whose picture is done"));
}

// Without whole layers a patch sees its window alone, which is 112 pixels a side.
TEST(VisionTower, HasWindows) {
  VisionFileShape shape = Qwen25();
  const auto backend = CpuOf(1);
  for (const bool whole : {false, true}) {
    shape.whole_layer_step = whole ? 2 : 100;
    const TowerFile file(shape);
    const auto tower = LoadTower(file, *backend);
    PreparedPicture picture = PictureOf(tower->settings(), 168, 112, 1);
    const std::vector<float> before = Embeddings(*tower, picture);
    picture.pixels.rgb[0] ^= 0x80;
    const std::vector<float> after = Embeddings(*tower, picture);
    for (int token = 0; token < picture.layout.token_count; ++token) {
      const auto at = before.begin() + token * Values(*tower);
      const bool same = std::equal(at, at + Values(*tower), after.begin() + token * Values(*tower));
      EXPECT_EQ(same, !whole && token % 6 >= 4) << token;
    }
  }
}

TEST(VisionTower, PutsAnEmbeddingBetweenRows) {
  const auto backend = CpuOf(1);
  for (const int merge : {1, 2}) {
    const TowerFile file(Pixtral(merge));
    const auto tower = LoadTower(file, *backend);
    const PreparedPicture picture = PictureOf(tower->settings(), 48, 64, 1);
    EXPECT_EQ(picture.layout.token_count, merge == 1 ? 6 * 8 + 7 : 3 * 4 + 3);
    const std::vector<float> rows = Embeddings(*tower, picture);
    const TensorView row_break = *file.file().Tensor("v.token_embd.img_break");
    const int step = 6 / merge + 1;
    for (int token = 0; token < picture.layout.token_count; ++token) {
      const auto at = rows.begin() + token * Values(*tower);
      EXPECT_EQ(std::equal(at, at + Values(*tower), row_break.as<const float>()),
                (token + 1) % step == 0)
          << token;
    }
  }
}

TEST(VisionTower, RefusesLimitsThatDescend) {
  const TowerFile file(Gemma4());
  const auto backend = CpuOf(1);
  GgufHeader header;
  for (const GgufEntry& entry : file.file().entries()) header.SetEntry(entry);
  std::vector<testing::NewTensor> tensors;
  for (const GgufTensor& tensor : file.file().tensors()) {
    tensors.push_back(testing::CopyOf(tensor));
    if (tensor.name != "v.blk.1.attn_k.input_max") continue;
    const float low = -9.0F;
    std::memcpy(tensors.back().bytes.data(), &low, sizeof(low));
  }
  const std::string bytes = testing::FileOf(std::move(header), tensors);
  const auto parsed = GgufFile::Parse(std::as_bytes(std::span(bytes)), "changed.gguf");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const auto tower = VisionTower::Load(**parsed, *backend);
  ASSERT_FALSE(tower.ok());
  EXPECT_EQ(tower.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(tower.status().message(), StartsWith("changed.gguf: tensor 'v.blk.1.attn_k.weight'"));
  EXPECT_THAT(tower.status().message(), HasSubstr("to -9"));
}

TEST(VisionTower, HasAPartForEachDeepLayer) {
  const TowerFile file(Qwen3());
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file, *backend);
  EXPECT_THAT(tower->settings().deep_layers, ::testing::ElementsAre(0, 2));
  EXPECT_EQ(tower->settings().embedding_width, 40);
  EXPECT_EQ(tower->embedding_width(), 120);
}

// Files without a tensor, with a tensor of another shape, and with one more.
class TowerTensors : public ::testing::TestWithParam<VisionFileShape> {};

TEST_P(TowerTensors, AreAllNeededInTheirShape) {
  const TowerFile file(GetParam());
  const auto backend = CpuOf(1);
  const auto load = [&](const std::vector<testing::NewTensor>& tensors) {
    GgufHeader header;
    for (const GgufEntry& entry : file.file().entries()) header.SetEntry(entry);
    const std::string bytes = testing::FileOf(std::move(header), tensors);
    const auto parsed = GgufFile::Parse(std::as_bytes(std::span(bytes)), "changed.gguf");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    auto tower = VisionTower::Load(**parsed, *backend);
    EXPECT_FALSE(tower.ok());
    return tower.ok() ? Status::Ok() : std::move(tower).TakeStatus();
  };
  std::vector<testing::NewTensor> all;
  for (const GgufTensor& tensor : file.file().tensors()) all.push_back(testing::CopyOf(tensor));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name.ends_with(".bias")) continue;  // files have some of them only
    SCOPED_TRACE(all[i].name);
    std::vector<testing::NewTensor> tensors = all;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const Status missing = load(tensors);
    EXPECT_EQ(missing.code(), StatusCode::kCorrupt);
    EXPECT_THAT(missing.message(), StartsWith("changed.gguf: tensor '"));
    EXPECT_THAT(missing.message(), HasSubstr("' is missing"));
    const bool has_any_rows =  // the decoder's hidden size
        GetParam().projector == "gemma4v" && all[i].name == "mm.input_projection.weight";
    if (has_any_rows) continue;
    tensors = all;
    tensors[i].dims.back() *= 2;
    tensors[i].bytes.resize(2 * tensors[i].bytes.size());
    const Status larger = load(tensors);
    EXPECT_EQ(larger.code(), StatusCode::kCorrupt);
    EXPECT_THAT(larger.message(), HasSubstr("tensor '"));
  }
  all.push_back(all.back());
  all.back().name = "v.another";
  const Status unknown = load(all);
  EXPECT_EQ(unknown.code(), StatusCode::kUnsupported);
  EXPECT_THAT(unknown.message(), HasSubstr("'v.another' is unknown"));
}

INSTANTIATE_TEST_SUITE_P(All, TowerTensors,
                         ::testing::Values(VisionFileShape{.layers = 1}, Qwen25(), Qwen3(),
                                           Gemma4(), Pixtral(1), Pixtral(2)));

TEST(VisionTower, HoldsThreeValuesForEachPatch) {
  const TowerFile file({.image_size = 96, .patch_size = 4});
  const auto backend = CpuOf(1);
  const auto tower = LoadTower(file, *backend);
  EXPECT_EQ(tower->ActivationBytes(), 0);
  Embeddings(*tower, PictureOf(tower->settings(), 96, 96, 1));
  EXPECT_GE(tower->ActivationBytes(), 3 * 576 * 48 * 4);
  EXPECT_LE(tower->ActivationBytes(), 8 * 576 * 48 * 4);
}

}  // namespace
}  // namespace kvcache::vision
