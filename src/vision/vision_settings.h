// The settings of a vision tower: what a projector file ("mmproj-NAME.gguf", architecture "clip") says, and what the
// processor of its model does with a picture.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "image/normalise.h"
#include "image/resize/pillow_resize.h"
#include "image/size_rule.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/weights.h"

namespace kvcache::vision {

// clip.projector_type: the family that a tower belongs to.
enum class Projector : std::uint8_t {
  kGemma3,    // "gemma3": SigLIP, 4 x 4 patches averaged to a token
  kQwen25Vl,  // "qwen2.5vl_merger": windows, rotated by row and column
  kQwen3Vl,   // "qwen3vl_merger": the states of some layers are further parts of an embedding
  kPixtral,   // "pixtral": Pixtral and Mistral 3: an embedding stands between two rows of tokens
  kGemma4,  // "gemma4v": positions and rotation by column and row, 3 x 3 patches averaged to a token
};

// How queries and keys are rotated by their patch's row and column.
enum class Rotation : std::uint8_t {
  kNone,
  kInterleavedAxes,  // of a half of the head, pairs (i, i + half): rows for i < a quarter, then columns
  kAxisByAxis,  // the first half of the head by rows, the second by columns; neighbours are pairs
  kColumnsThenRows,  // the first half by columns, the second by rows; pairs (i, i + a quarter) of it
};

struct VisionSettings {
  Projector projector = Projector::kGemma3;

  // The tower.
  int patch_size = 0;  // pixels a side of a patch
  int width = 0;       // values of a patch inside the tower
  int heads = 0;
  int ffn = 0;
  int layers = 0;
  NormKind norm = NormKind::kLayer;
  float epsilon = 0.0F;  // of the norms
  bool gated = false;    // the feed-forward part
  Activation activation = Activation::kGelu;
  int position_count = 0;  // learned positions, one for each patch of a square; 0: none
  // Each column and each row has a learned position, position_count of each.
  bool has_axis_positions = false;
  // A picture may have another grid of patches than the square of learned positions: they are interpolated.
  bool interpolates_positions = false;
  bool has_first_norm = false;  // of patches, before the layers
  int frames = 1;               // kernels over equal frames of a video, whose results are added
  Rotation rotation = Rotation::kNone;
  bool has_head_norms =
      false;  // of each head's query and key, with weights, and of its value, without
  bool has_result_norms = false;  // of what a layer's two parts add
  bool scales_scores = true;      // by 1 / sqrt(head_dim)
  int window = 0;  // tokens a side of the windows in which patches see each other; 0: none
  int whole_layer_step = 1;  // every n-th layer has no windows
  std::vector<int>
      deep_layers;  // behind which states become further parts of an embedding, ascending
  int merge = 1;    // patches a side of what becomes one token

  // The picture, as the model's own processor makes it. A caller may replace the rule of sizes by another one of the same
  // type, for pictures of fewer tokens.
  image::SizeRule size_rule;
  image::ResizeFilter filter = image::ResizeFilter::kBilinear;
  image::Normalisation normalisation;

  // What the decoder gets.
  int embedding_width = 0;  // the decoder's hidden size
  // An embedding has this many parts of that size: the one that takes the place of a token's, and one for each of
  // deep_layers, which the decoder adds behind its first layers.
  int parts() const { return 1 + static_cast<int>(deep_layers.size()); }
  bool has_row_breaks = false;  // an embedding stands behind each row of tokens but the last
  // The decoder places tokens by row and column (M-RoPE), not one after another.
  bool has_grid_positions = false;
  // The tokens of a picture see each other, and not only those before them.
  bool tokens_see_each_other = false;

  int head_dim() const { return width / heads; }
  int patch_values() const { return 3 * patch_size * patch_size; }
};

// Returns the settings. All keys of the architecture are checked; one that no code here knows is an error. Errors begin
// with the file's path and name the key or the tensor, its value and the rule: kInvalidArgument: no projector file;
// kNotFound: a key is missing; kCorrupt: a value is out of range, or contradicts another one; kUnsupported: a projector, or a
// setting of one, that is not offered, or a file without a vision tower.
Result<VisionSettings> ReadVisionSettings(const GgufFile& file);

// Returns the names of the projectors that are offered.
std::vector<std::string_view> SupportedProjectors();

// Returns clip.projector_type of the settings' projector.
std::string_view ProjectorName(Projector projector);

}  // namespace kvcache::vision
