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

constexpr Family kFamilies[] = {
    {"gemma3", Projector::kGemma3, ReadGemma3},
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
  if (!has_vision)
    return Unsupported(
        StrCat(keys.Key("has_vision_encoder"), " is not true: the file has no vision tower"));
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
