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
