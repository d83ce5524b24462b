#include "vision/vision_settings.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model/load/key_reader.h"

namespace kvcache::vision {
namespace {

constexpr int kMaxImageSide = 1 << 13;  // pixels
constexpr int kMaxPatchSide = 256;
constexpr int kMaxWidth = 1 << 16;
constexpr int kMaxLayers = 1 << 10;
constexpr int kMaxMerge = 64;

struct Family {
  std::string_view name;
  Projector projector;
  Status (*read)(KeyReader& keys, VisionSettings& settings);
};

Result<std::array<float, 3>> Channels(KeyReader& keys, const std::string& key) {
  KVCACHE_ASSIGN_OR_RETURN(const GgufFloats values, keys.file().GetFloats(keys.Key(key)));
  keys.Ignore(key);  // it is read
  std::array<float, 3> channels{};
  if (values.size() != channels.size()) {
    return Corrupt(StrCat(keys.Key(key), " has ", values.size(),
                          " values; must be 3, of red, green and blue"));
  }
  std::size_t i = 0;
  for (const double value : values) channels[i++] = static_cast<float>(value);
  for (const float value : channels) {
    if (!std::isfinite(value))
      return Corrupt(StrCat(keys.Key(key), " has a value that is not finite"));
  }
  return channels;
}

Status ReadNormalisation(KeyReader& keys, VisionSettings& settings) {
  KVCACHE_ASSIGN_OR_RETURN(settings.normalisation.mean, Channels(keys, "vision.image_mean"));
  KVCACHE_ASSIGN_OR_RETURN(settings.normalisation.deviation, Channels(keys, "vision.image_std"));
  for (const float value : settings.normalisation.deviation) {
    if (value == 0.0F)
      return Corrupt(StrCat(keys.Key("vision.image_std"), " has a 0; must not be 0"));
  }
  return Status::Ok();
}

// The parts that all towers have.
Status ReadTower(KeyReader& keys, VisionSettings& settings) {
  KVCACHE_ASSIGN_OR_RETURN(settings.patch_size, keys.Int("vision.patch_size", kMaxPatchSide));
  KVCACHE_ASSIGN_OR_RETURN(settings.width, keys.Int("vision.embedding_length", kMaxWidth));
  KVCACHE_ASSIGN_OR_RETURN(settings.heads, keys.Int("vision.attention.head_count", settings.width));
  KVCACHE_ASSIGN_OR_RETURN(settings.ffn, keys.Int("vision.feed_forward_length", kMaxWidth));
  KVCACHE_ASSIGN_OR_RETURN(settings.layers, keys.Int("vision.block_count", kMaxLayers));
  if (settings.width % settings.heads != 0) {
    return Corrupt(StrCat(keys.Key("vision.attention.head_count"), " is ", settings.heads,
                          "; must divide the width, ", settings.width));
  }
  KVCACHE_ASSIGN_OR_RETURN(const double epsilon, keys.Float("vision.attention.layer_norm_epsilon"));
  settings.epsilon = static_cast<float>(epsilon);
  if (!(settings.epsilon > 0)) {
    return Corrupt(StrCat(keys.Key("vision.attention.layer_norm_epsilon"), " is ", epsilon,
                          "; must be above 0"));
  }
  // The size of the decoder; tensors have it too, and old files have another number here.
  keys.Ignore("vision.projection_dim");
  return ReadNormalisation(keys, settings);
}

// Refuses an activation that the model does not have. A file that names none has the model's.
Status CheckActivation(KeyReader& keys, Activation activation) {
  KVCACHE_ASSIGN_OR_RETURN(const bool gelu, keys.BoolOr("use_gelu", false));
  KVCACHE_ASSIGN_OR_RETURN(const bool silu, keys.BoolOr("use_silu", false));
  if (gelu && activation != Activation::kGelu) return keys.Unsupported("use_gelu");
  if (silu && activation != Activation::kSilu) return keys.Unsupported("use_silu");
  return Status::Ok();
}

// Returns a dimension of a tensor's. Errors: kCorrupt.
Result<int> Dimension(const KeyReader& keys, std::string_view name, std::size_t dimension) {
  const GgufTensor* const tensor = keys.file().FindTensor(name);
  if (tensor == nullptr) return Corrupt(StrCat("tensor '", name, "' is missing"));
  const std::int64_t size = tensor->dims[dimension];
  if (size < 1 || size > kMaxWidth) {
    return Corrupt(StrCat("tensor '", name, "' has ", size, " values in dimension ", dimension,
                          "; must be 1 to ", kMaxWidth));
  }
  return static_cast<int>(size);
}

Status ReadGemma3(KeyReader& keys, VisionSettings& settings) {
  KVCACHE_RETURN_IF_ERROR(CheckActivation(keys, settings.activation));
  KVCACHE_ASSIGN_OR_RETURN(const int side, keys.Int("vision.image_size", kMaxImageSide));
  KVCACHE_ASSIGN_OR_RETURN(settings.merge,
                           keys.IntOr("vision.projector.scale_factor", kMaxMerge, 4));
  const int token = settings.patch_size * settings.merge;
  if (side % token != 0) {
    return Corrupt(StrCat(keys.Key("vision.image_size"), " is ", side, "; must be a multiple of ",
                          token, ", the pixels of a token's side"));
  }
  settings.position_count = (side / settings.patch_size) * (side / settings.patch_size);
  settings.size_rule = image::FixedSize{{side, side}};
  settings.filter = image::ResizeFilter::kBilinear;
  settings.tokens_see_each_other = true;
  KVCACHE_ASSIGN_OR_RETURN(settings.embedding_width,
                           Dimension(keys, "mm.input_projection.weight", 0));
  return Status::Ok();
}

Status CheckRotation(const KeyReader& keys, const VisionSettings& settings) {
  if (settings.head_dim() % 4 == 0) return Status::Ok();
  return Corrupt(StrCat(keys.Key("vision.attention.head_count"), " is ", settings.heads,
                        ", so a head has ", settings.head_dim(),
                        " values; must be a multiple of 4"));
}

// Both of Qwen's. A file may name the limits of sizes; else they are those of the models' processors.
Status ReadQwen(KeyReader& keys, VisionSettings& settings, image::SizeWithinArea sizes) {
  KVCACHE_RETURN_IF_ERROR(CheckActivation(keys, settings.activation));
  KVCACHE_RETURN_IF_ERROR(CheckRotation(keys, settings));
  KVCACHE_ASSIGN_OR_RETURN(settings.merge, keys.IntOr("vision.spatial_merge_size", kMaxMerge, 2));
  keys.Ignore(
      "vision.image_size");  // of pictures in training, or of the learned positions, whose tensor has it
  sizes.unit = settings.patch_size * settings.merge;
  constexpr std::int64_t kMaxPixels = std::int64_t{1} << 30;
  KVCACHE_ASSIGN_OR_RETURN(sizes.min_pixels, keys.IntOr("vision.image_min_pixels", kMaxPixels,
                                                        static_cast<int>(sizes.min_pixels)));
  KVCACHE_ASSIGN_OR_RETURN(sizes.max_pixels, keys.IntOr("vision.image_max_pixels", kMaxPixels,
                                                        static_cast<int>(sizes.max_pixels)));
  settings.size_rule = sizes;
  settings.filter = image::ResizeFilter::kBicubic;
  settings.frames = 2;
  settings.rotation = Rotation::kInterleavedAxes;
  settings.has_grid_positions = true;
  KVCACHE_ASSIGN_OR_RETURN(settings.embedding_width, Dimension(keys, "mm.2.weight", 1));
  return Status::Ok();
}

Status ReadQwen25Vl(KeyReader& keys, VisionSettings& settings) {
  settings.norm = NormKind::kRms;
  settings.gated = true;
  settings.activation = Activation::kSilu;
  KVCACHE_RETURN_IF_ERROR(ReadQwen(keys, settings, {.min_pixels = 3136, .max_pixels = 12845056}));
  KVCACHE_ASSIGN_OR_RETURN(settings.whole_layer_step, keys.Int("vision.n_wa_pattern", kMaxLayers));
  KVCACHE_ASSIGN_OR_RETURN(const int window, keys.IntOr("vision.window_size", kMaxImageSide, 112));
  settings.window = window / (settings.patch_size * settings.merge);
  if (settings.window > 0) return Status::Ok();
  return Corrupt(StrCat("windows of ", window, " pixels; must be at least ",
                        settings.patch_size * settings.merge, ", a token's side"));
}

Status ReadQwen3Vl(KeyReader& keys, VisionSettings& settings) {
  KVCACHE_RETURN_IF_ERROR(ReadQwen(keys, settings, {.min_pixels = 65536, .max_pixels = 16777216}));
  KVCACHE_ASSIGN_OR_RETURN(settings.position_count, Dimension(keys, "v.position_embd.weight", 1));
  const auto side =
      static_cast<int>(std::lround(std::sqrt(static_cast<double>(settings.position_count))));
  if (side * side != settings.position_count) {
    return Corrupt(StrCat("tensor 'v.position_embd.weight' has ", settings.position_count,
                          " positions; must be a square"));
  }
  settings.interpolates_positions = true;
  constexpr std::string_view kDeep = "vision.is_deepstack_layers";
  if (!keys.Has(kDeep)) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const GgufBools deep, keys.file().GetBools(keys.Key(kDeep)));
  keys.Ignore(kDeep);  // it is read
  if (std::ssize(deep) != settings.layers) {
    return Corrupt(
        StrCat(keys.Key(kDeep), " has ", deep.size(), " values for ", settings.layers, " layers"));
  }
  int layer = 0;
  for (const bool is_deep : deep) {
    if (is_deep) settings.deep_layers.push_back(layer);
    ++layer;
  }
  return Status::Ok();
}

// Pixtral, and Mistral 3, which merges patches. The image size is the longest edge of a picture.
Status ReadPixtral(KeyReader& keys, VisionSettings& settings) {
  settings.norm = NormKind::kRms;
  settings.gated = true;
  settings.activation = Activation::kSilu;
  KVCACHE_RETURN_IF_ERROR(CheckActivation(keys, settings.activation));
  KVCACHE_RETURN_IF_ERROR(CheckRotation(keys, settings));
  KVCACHE_ASSIGN_OR_RETURN(settings.merge, keys.IntOr("vision.spatial_merge_size", kMaxMerge, 1));
  KVCACHE_ASSIGN_OR_RETURN(const int edge, keys.Int("vision.image_size", kMaxImageSide));
  settings.size_rule = image::SizeWithinEdge{settings.patch_size * settings.merge, edge};
  settings.filter = image::ResizeFilter::kBicubic;
  settings.rotation = Rotation::kAxisByAxis;
  settings.has_first_norm = true;
  settings.has_row_breaks = true;
  KVCACHE_ASSIGN_OR_RETURN(settings.embedding_width, Dimension(keys, "mm.2.weight", 1));
  return Status::Ok();
}

// Pixels become 2 x - 1, which is a mean and a deviation of a half; files have a mean of 0 and a deviation of 1.
Status ReadGemma4(KeyReader& keys, VisionSettings& settings) {
  settings.norm = NormKind::kRms;
  settings.gated = true;
  KVCACHE_RETURN_IF_ERROR(CheckActivation(keys, settings.activation));
  KVCACHE_RETURN_IF_ERROR(CheckRotation(keys, settings));
  if (settings.normalisation.mean != std::array<float, 3>{})
    return keys.Unsupported("vision.image_mean");
  if (settings.normalisation.deviation != std::array<float, 3>{1, 1, 1}) {
    return keys.Unsupported("vision.image_std");
  }
  settings.normalisation = {{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}};
  keys.Ignore("vision.image_size");  // pictures have any
  KVCACHE_ASSIGN_OR_RETURN(settings.merge,
                           keys.IntOr("vision.projector.scale_factor", kMaxMerge, 3));
  constexpr int kTokens = 280;  // of the model's processor
  settings.size_rule = image::LargestSize{settings.patch_size * settings.merge, kTokens};
  settings.filter = image::ResizeFilter::kBicubic;
  KVCACHE_ASSIGN_OR_RETURN(settings.position_count, Dimension(keys, "v.position_embd.weight", 1));
  settings.has_axis_positions = true;
  settings.rotation = Rotation::kColumnsThenRows;
  settings.has_head_norms = true;
  settings.has_result_norms = true;
  settings.scales_scores = false;
  KVCACHE_ASSIGN_OR_RETURN(settings.embedding_width,
                           Dimension(keys, "mm.input_projection.weight", 1));
  // The decoders of E2B and E4B are causal; no key of this file tells them apart, but their widths.
  settings.tokens_see_each_other =
      settings.embedding_width != 1536 && settings.embedding_width != 2560;
  return Status::Ok();
}

constexpr Family kFamilies[] = {
    {"gemma3", Projector::kGemma3, ReadGemma3},
    {"qwen2.5vl_merger", Projector::kQwen25Vl, ReadQwen25Vl},
    {"qwen3vl_merger", Projector::kQwen3Vl, ReadQwen3Vl},
    {"pixtral", Projector::kPixtral, ReadPixtral},
    {"gemma4v", Projector::kGemma4, ReadGemma4},
};

Result<const Family*> FindFamily(KeyReader& keys) {
  const auto* const key =
      keys.Has("vision.projector_type") ? "vision.projector_type" : "projector_type";
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view name, keys.StringOr(key, ""));
  if (name.empty()) return NotFound(StrCat(keys.Key(key), " is missing"));
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
    known += StrCat(" ", family.name);
  }
  return Unsupported(StrCat(keys.Key(key), " is ", Quoted(name), "; known are:", known));
}

Result<VisionSettings> Read(const GgufFile& file) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                           file.GetString("general.architecture"));
  if (architecture != "clip") {
    return InvalidArgument(StrCat("general.architecture is ", Quoted(architecture),
                                  "; must be 'clip', a projector file's"));
  }
  KeyReader keys(file, architecture);
  KVCACHE_ASSIGN_OR_RETURN(const bool has_vision, keys.BoolOr("has_vision_encoder", false));
  if (!has_vision) {
    return Unsupported(
        StrCat(keys.Key("has_vision_encoder"), " is not true: the file has no vision tower"));
  }
  // What belongs to sound.
  keys.Ignore("has_audio_encoder");
  keys.IgnoreAll("audio.");
  KVCACHE_ASSIGN_OR_RETURN(const Family* const family, FindFamily(keys));
  VisionSettings settings;
  settings.projector = family->projector;
  KVCACHE_RETURN_IF_ERROR(ReadTower(keys, settings));
  KVCACHE_RETURN_IF_ERROR(family->read(keys, settings));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return settings;
}

}  // namespace

Result<VisionSettings> ReadVisionSettings(const GgufFile& file) {
  auto settings = Read(file);
  if (!settings.ok()) return std::move(settings).TakeStatus().WithContext(file.path());
  return settings;
}

std::vector<std::string_view> SupportedProjectors() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

std::string_view ProjectorName(Projector projector) {
  for (const Family& family : kFamilies) {
    if (family.projector == projector) return family.name;
  }
  return "unknown";
}

}  // namespace kvcache::vision
