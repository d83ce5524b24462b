#include "vision/vision_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/gguf_writer.h"
#include "model/load/rewritten_testing.h"
#include "vision/prepared_picture.h"
#include "vision/tower_testing.h"

namespace kvcache::vision {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using vision_test::TowerFile;

// The file without one of its keys, and with what `add` sets.
class ChangedFile {
 public:
  ChangedFile(const GgufFile& file, std::string_view without,
              const std::function<void(GgufHeader&)>& add) {
    GgufHeader header;
    for (const GgufEntry& entry : file.entries()) {
      if (entry.key != without) header.SetEntry(entry);
    }
    if (add) add(header);
    std::vector<testing::NewTensor> tensors;
    for (const GgufTensor& tensor : file.tensors()) tensors.push_back(testing::CopyOf(tensor));
    bytes_ = testing::FileOf(std::move(header), tensors);
    file_ = std::move(GgufFile::Parse(std::as_bytes(std::span(bytes_)), "changed.gguf")).value();
  }
  const GgufFile& file() const { return *file_; }

 private:
  std::string bytes_;
  std::unique_ptr<GgufFile> file_;
};

std::function<void(GgufHeader&)> Number(const char* key, std::uint32_t value) {
  return [=](GgufHeader& header) { header.SetUint32(key, value); };
}
std::function<void(GgufHeader&)> Floats(const char* key, std::vector<float> values) {
  return [=](GgufHeader& header) { header.SetFloats(key, values); };
}
std::function<void(GgufHeader&)> Text(const char* key, const char* value) {
  return [=](GgufHeader& header) { header.SetString(key, value); };
}
std::function<void(GgufHeader&)> Bool(const char* key, bool value) {
  return [=](GgufHeader& header) { header.SetBool(key, value); };
}

TEST(VisionSettings, AreThoseOfTheFile) {
  const TowerFile file({.image_size = 96,
                        .patch_size = 8,
                        .width = 48,
                        .heads = 3,
                        .ffn = 80,
                        .layers = 2,
                        .merge = 4,
                        .embedding_width = 40});
  const auto settings = ReadVisionSettings(file.file());
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(ProjectorName(settings->projector), "gemma3");
  EXPECT_EQ(settings->patch_size, 8);
  EXPECT_EQ(settings->width, 48);
  EXPECT_EQ(settings->head_dim(), 16);
  EXPECT_EQ(settings->ffn, 80);
  EXPECT_EQ(settings->layers, 2);
  EXPECT_EQ(settings->merge, 4);
  EXPECT_EQ(settings->embedding_width, 40);
  EXPECT_EQ(settings->epsilon, 1e-6F);
  EXPECT_EQ(settings->position_count, 144);
  EXPECT_TRUE(settings->tokens_see_each_other);
  EXPECT_EQ(settings->normalisation.mean[1], 0.45F);
  EXPECT_EQ(settings->normalisation.deviation[2], 0.3F);
  const auto& rule = std::get<image::FixedSize>(settings->size_rule);
  EXPECT_EQ(rule.size.width, 96);
  EXPECT_EQ(rule.size.height, 96);
}

TEST(VisionSettings, TakeTheDefaultsOfTheModel) {
  const TowerFile file({});
  const ChangedFile no_merge(file.file(), "clip.vision.projector.scale_factor", {});
  EXPECT_EQ(ReadVisionSettings(no_merge.file())->merge, 4);
  const ChangedFile no_gelu(file.file(), "clip.use_gelu", {});
  EXPECT_EQ(ReadVisionSettings(no_gelu.file())->activation, Activation::kGelu);
  const ChangedFile other_key(file.file(), "clip.projector_type", [](GgufHeader& header) {
    header.SetString("clip.vision.projector_type", "gemma3");
    header.SetString("clip.audio.projector_type", "gemma3a");
    header.SetBool("clip.has_audio_encoder", true);
  });
  EXPECT_TRUE(ReadVisionSettings(other_key.file()).ok());
}

TEST(VisionSettings, AreThoseOfQwen25Vl) {
  const TowerFile file(
      {.projector = "qwen2.5vl_merger", .patch_size = 14, .merge = 2, .whole_layer_step = 8});
  const auto settings = ReadVisionSettings(file.file());
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->norm, NormKind::kRms);
  EXPECT_TRUE(settings->gated);
  EXPECT_EQ(settings->activation, Activation::kSilu);
  EXPECT_EQ(settings->window, 4);
  EXPECT_EQ(settings->whole_layer_step, 8);
  EXPECT_EQ(settings->frames, 2);
  EXPECT_TRUE(settings->has_grid_positions);
  EXPECT_FALSE(settings->tokens_see_each_other);
  EXPECT_EQ(settings->filter, image::ResizeFilter::kBicubic);
  const auto& rule = std::get<image::SizeWithinArea>(settings->size_rule);
  EXPECT_EQ(rule.unit, 28);
  EXPECT_EQ(rule.min_pixels, 3136);
  EXPECT_EQ(rule.max_pixels, 12845056);
}

TEST(VisionSettings, AreThoseOfQwen3Vl) {
  const TowerFile file({.projector = "qwen3vl_merger",
                        .image_size = 96,
                        .patch_size = 16,
                        .layers = 5,
                        .merge = 2,
                        .deep_step = 2});
  const auto settings = ReadVisionSettings(file.file());
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_THAT(settings->deep_layers, ::testing::ElementsAre(0, 2, 4));
  EXPECT_EQ(settings->parts(), 4);
  EXPECT_EQ(settings->position_count, 36);
  EXPECT_TRUE(settings->interpolates_positions);
  EXPECT_TRUE(settings->has_grid_positions);
  EXPECT_EQ(settings->window, 0);
  const auto& rule = std::get<image::SizeWithinArea>(settings->size_rule);
  EXPECT_EQ(rule.unit, 32);
  EXPECT_EQ(rule.min_pixels, 65536);
  EXPECT_EQ(rule.max_pixels, 16777216);
}

TEST(VisionSettings, AreThoseOfPixtralAndMistral3) {
  for (const int merge : {1, 2}) {
    const TowerFile file(
        {.projector = "pixtral", .image_size = 1540, .patch_size = 14, .merge = merge});
    const auto settings = ReadVisionSettings(file.file());
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->merge, merge);
    EXPECT_TRUE(settings->has_row_breaks);
    EXPECT_FALSE(settings->has_grid_positions);
    EXPECT_EQ(settings->rotation, Rotation::kAxisByAxis);
    const auto& rule = std::get<image::SizeWithinEdge>(settings->size_rule);
    EXPECT_EQ(rule.unit, 14 * merge);
    EXPECT_EQ(rule.longest_edge, 1540);
    // 1540 x 770 pixels.
    const PictureGrid expected = merge == 1 ? PictureGrid{110, 55} : PictureGrid{55, 28};
    EXPECT_EQ(LayoutOf({2000, 1000}, *settings)->tokens, expected);
    EXPECT_EQ(LayoutOf({2000, 1000}, *settings)->token_count, expected.count() + expected.rows - 1);
  }
}

TEST(VisionSettings, AreThoseOfGemma4) {
  const TowerFile file({.projector = "gemma4v", .image_size = 256, .patch_size = 16, .merge = 3});
  const auto settings = ReadVisionSettings(file.file());
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->normalisation.mean[0], 0.5F);
  EXPECT_EQ(settings->normalisation.deviation[2], 0.5F);
  EXPECT_EQ(settings->position_count, 16);
  EXPECT_EQ(settings->activation, Activation::kGelu);
  EXPECT_TRUE(settings->tokens_see_each_other);
  const auto& rule = std::get<image::LargestSize>(settings->size_rule);
  EXPECT_EQ(rule.unit, 48);
  EXPECT_EQ(rule.max_units, 280);
  EXPECT_EQ(LayoutOf({100, 100}, *settings)->token_count, 256);
  const TowerFile causal({.projector = "gemma4v", .merge = 3, .embedding_width = 1536});
  EXPECT_FALSE(ReadVisionSettings(causal.file())->tokens_see_each_other);
  const ChangedFile other_mean(file.file(), "clip.vision.image_mean",
                               Floats("clip.vision.image_mean", {0.5F, 0.5F, 0.5F}));
  const auto refused = ReadVisionSettings(other_mean.file());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("clip.vision.image_mean"));
}

TEST(VisionSettings, RefuseWrongOnesOfQwen) {
  const TowerFile windows({.projector = "qwen2.5vl_merger", .patch_size = 14, .merge = 2});
  const auto message = [](const ChangedFile& changed) {
    const auto settings = ReadVisionSettings(changed.file());
    EXPECT_FALSE(settings.ok());
    return settings.ok() ? std::string() : std::string(settings.status().message());
  };
  EXPECT_THAT(message({windows.file(), "clip.vision.n_wa_pattern", {}}), HasSubstr("n_wa_pattern"));
  EXPECT_THAT(message({windows.file(), "", Number("clip.vision.window_size", 27)}),
              HasSubstr("windows of 27 pixels; must be at least 28"));
  EXPECT_THAT(message({windows.file(), "clip.vision.attention.head_count",
                       Number("clip.vision.attention.head_count", 8)}),
              HasSubstr("so a head has 6 values; must be a multiple of 4"));
  EXPECT_THAT(message({windows.file(), "clip.use_silu", Bool("clip.use_gelu", true)}),
              HasSubstr("clip.use_gelu is true: not supported"));
  const TowerFile deep({.projector = "qwen3vl_merger", .merge = 2});
  constexpr const char* kDeep = "clip.vision.is_deepstack_layers";
  const bool values[] = {true, false};
  EXPECT_THAT(
      message({deep.file(), kDeep, [&](GgufHeader& header) { header.SetBools(kDeep, values); }}),
      HasSubstr("is_deepstack_layers has 2 values for 3 layers"));
}

struct BadKey {
  const char* key;                         // is left out
  std::function<void(GgufHeader&)> add{};  // and this takes its place
  StatusCode code;
  const char* message;  // part of it
};

class BadKeys : public ::testing::TestWithParam<BadKey> {};

TEST_P(BadKeys, AreRefused) {
  const TowerFile file({});
  const ChangedFile changed(file.file(), GetParam().key, GetParam().add);
  const auto settings = ReadVisionSettings(changed.file());
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(settings.status().code(), GetParam().code) << settings.status().message();
  EXPECT_THAT(settings.status().message(), StartsWith("changed.gguf: "));
  EXPECT_THAT(settings.status().message(), HasSubstr(GetParam().message));
}

const BadKey kBadKeys[] = {
    {"general.architecture", Text("general.architecture", "llama"), StatusCode::kInvalidArgument,
     "general.architecture is 'llama'; must be 'clip'"},
    {"clip.has_vision_encoder", {}, StatusCode::kUnsupported, "no vision tower"},
    {"clip.projector_type", {}, StatusCode::kNotFound, "clip.projector_type is missing"},
    {"clip.projector_type", Text("clip.projector_type", "gemma9"), StatusCode::kUnsupported,
     "clip.projector_type is 'gemma9'; known are: gemma3"},
    {"clip.use_gelu", Bool("clip.use_silu", true), StatusCode::kUnsupported,
     "clip.use_silu is true"},
    {"clip.vision.patch_size", {}, StatusCode::kNotFound, "clip.vision.patch_size"},
    {"clip.vision.patch_size", Number("clip.vision.patch_size", 0), StatusCode::kCorrupt,
     "clip.vision.patch_size is 0; must be 1 to"},
    {"clip.vision.patch_size", Number("clip.vision.patch_size", 7), StatusCode::kCorrupt,
     "clip.vision.image_size is 64; must be a multiple of 28"},
    {"clip.vision.image_size", Number("clip.vision.image_size", 1 << 20), StatusCode::kCorrupt,
     "clip.vision.image_size is 1048576; must be 1 to"},
    {"clip.vision.projector.scale_factor", Number("clip.vision.projector.scale_factor", 3),
     StatusCode::kCorrupt, "must be a multiple of 24"},
    {"clip.vision.attention.head_count", Number("clip.vision.attention.head_count", 5),
     StatusCode::kCorrupt, "clip.vision.attention.head_count is 5; must divide the width, 48"},
    {"clip.vision.block_count", Number("clip.vision.block_count", 0), StatusCode::kCorrupt,
     "clip.vision.block_count is 0"},
    {"clip.vision.attention.layer_norm_epsilon", {}, StatusCode::kNotFound, "layer_norm_epsilon"},
    {"clip.vision.image_mean", Floats("clip.vision.image_mean", {0.5F, 0.5F}), StatusCode::kCorrupt,
     "clip.vision.image_mean has 2 values; must be 3"},
    {"clip.vision.image_mean", {}, StatusCode::kNotFound, "clip.vision.image_mean"},
    {"clip.vision.image_std", Floats("clip.vision.image_std", {0.5F, 0.0F, 0.5F}),
     StatusCode::kCorrupt, "clip.vision.image_std has a 0"},
    {"", Number("clip.vision.another_setting", 3), StatusCode::kUnsupported,
     "clip.vision.another_setting is 3: not supported"},
};

INSTANTIATE_TEST_SUITE_P(All, BadKeys, ::testing::ValuesIn(kBadKeys));

TEST(VisionSettings, NameTheProjectors) {
  EXPECT_THAT(SupportedProjectors(), ::testing::Contains("gemma3"));
}

}  // namespace
}  // namespace kvcache::vision
