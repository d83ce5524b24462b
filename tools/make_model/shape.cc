#include "make_model/shape.h"

#include <algorithm>

#include "base/strings.h"
#include "make_model/vocabulary.h"

namespace kvcache::make_model {
namespace {

struct Preset {
  std::string_view name;
  Shape shape;
};

const Preset kPresets[] = {
    {"tiny", Shape{}},
    // The size of models that run on a laptop: 1.50 billion parameters.
    {"1b",
     {.layers = 16,
      .hidden_size = 2048,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .ffn = 8192,
      .vocab = 128000,
      .context = 32768,
      .rope_base = 500000.0f}},
};

struct Bound {
  std::string_view flag;
  int value;
  int min;
  int max;
};

Status CheckBounds(const Shape& shape) {
  const Bound bounds[] = {
      {"--layers", shape.layers, 1, 1 << 12},
      {"--width", shape.hidden_size, 1, 1 << 20},
      {"--heads", shape.heads, 1, 1 << 12},
      {"--kv-heads", shape.kv_heads, 1, shape.heads},
      {"--head-dim", shape.head_dim, 2, 1 << 12},
      {"--ffn", shape.ffn, 1, 1 << 22},
      {"--vocab", shape.vocab, kFixedPieces, kMaxPieces},
      {"--context", shape.context, 1, 1 << 30},
      {"--rope-original-context", shape.rope_original_context, 1, 1 << 30},
      {"--window-pattern", shape.window_pattern, -1, 1 << 12},
      {"--window", shape.window, 0, 1 << 30},
      {"--experts", shape.experts, 0, 1 << 10},
      {"--experts-used", shape.experts_used, 1, shape.experts > 0 ? shape.experts : 1 << 10},
      {"--expert-ffn", shape.expert_ffn, 1, 1 << 22},
      {"--kv-rank", shape.family.kv_rank, 0, 1 << 16},
      {"--q-rank", shape.family.q_rank, 0, 1 << 16},
      {"--rope-dims", shape.family.rope_dims, 0, 1 << 16},
      {"--dense-layers", shape.family.dense_layers, 0, shape.layers},
      {"--shared-experts", shape.family.shared_experts, 0, 1 << 10},
      {"--expert-groups", shape.family.expert_groups, 0, shape.experts},
      {"--expert-groups-used", shape.family.expert_groups_used, 0, shape.family.expert_groups},
      {"--decoder-layers", shape.family.decoder_layers, 0, 1 << 12},
      {"--chunk", shape.family.chunk, 0, 1 << 28},
      {"--expert-step", shape.family.expert_step, 0, 1 << 12},
      {"--temperature-length", shape.family.temperature_length, 0, 1 << 28},
      {"--latent", shape.family.latent, 0, 1 << 16},
      {"--attention-step", shape.family.attention_step, 0, 1 << 12},
      {"--nextn-layers", shape.family.nextn_layers, 0, 16},
      {"--target-width", shape.family.target_size, 0, 1 << 20},
      {"--pooling", shape.family.pooling, 0, 255},
      {"--labels", shape.family.labels, 0, 1 << 10},
      {"--dense", shape.family.dense, 0, 1 << 16},
      {"--shared-layers", shape.family.shared_layers, 0, shape.layers - 1},
      {"--state-dim", shape.family.state_dim, 0, 1 << 12},
      {"--state-heads", shape.family.state_heads, 0, 1 << 12},
      {"--state-groups", shape.family.state_groups, 0, 1 << 12},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= bound.min && bound.value <= bound.max) continue;
    return {StatusCode::kInvalidArgument,
            StrCat(bound.flag, " is ", bound.value, "; must be ", bound.min, " to ", bound.max)};
  }
  return Status::Ok();
}

Status CheckRows(const Shape& shape, DType type) {
  // Rows that are not whole super-blocks fall back to a type with blocks of 32.
  const int block = std::min(InfoOf(type).block_size, 32);
  const Bound rows[] = {{"--width", shape.hidden_size, 0, 0},
                        {"--heads times --head-dim", shape.heads * shape.head_dim, 0, 0},
                        {"--ffn", shape.experts > 0 ? 0 : shape.ffn, 0, 0},
                        {"--expert-ffn", shape.experts > 0 ? shape.expert_ffn : 0, 0, 0}};
  for (const Bound& row : rows) {
    if (row.value % block == 0) continue;
    return {StatusCode::kInvalidArgument,
            StrCat(row.flag, " is ", row.value, "; must be a multiple of ", block,
                   ", the block of ", InfoOf(type).name)};
  }
  return Status::Ok();
}

}  // namespace

Result<Shape> PresetShape(const std::string& name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.shape;
    known += StrCat(known.empty() ? "" : ", ", preset.name);
  }
  return Status(StatusCode::kNotFound,
                StrCat("preset ", Quoted(name), " is not known; known are: ", known));
}

Status CheckShape(const Shape& shape, DType type) {
  KVCACHE_RETURN_IF_ERROR(CheckBounds(shape));
  if (shape.heads % shape.kv_heads != 0) {
    return {
        StatusCode::kInvalidArgument,
        StrCat("--heads is ", shape.heads, "; must be a multiple of --kv-heads, ", shape.kv_heads)};
  }
  if (shape.head_dim % 2 != 0) {
    return {StatusCode::kInvalidArgument,
            StrCat("--head-dim is ", shape.head_dim, "; must be even, as RoPE rotates pairs")};
  }
  if (!(shape.rope_base > 0.0f && shape.rope_base < 1e12f)) {
    return {StatusCode::kInvalidArgument,
            StrCat("--rope-base is ", shape.rope_base, "; must be above 0 and below 1e12")};
  }
  if (!(shape.rope_factor > 0.0f && shape.rope_factor < 1e6f)) {
    return {StatusCode::kInvalidArgument,
            StrCat("--rope-factor is ", shape.rope_factor, "; must be above 0 and below 1e6")};
  }
  return CheckRows(shape, type);
}

}  // namespace kvcache::make_model
