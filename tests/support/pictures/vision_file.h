// Projector files with random weights, for tests of vision towers: all that a family's published files have, in small.
//
// The bits depend on the shape and the seed alone. Users link kvcache_random_model.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/status.h"
#include "make_model/random_weights.h"
#include "tensor/quantize.h"

namespace kvcache::vision_test {

struct VisionFileShape {
  std::string projector = "gemma3";  // clip.projector_type
  int image_size = 64;
  int patch_size = 8;
  int width = 48;
  int heads = 4;
  int ffn = 80;
  int layers = 3;
  int merge = 4;
  int embedding_width = 40;
  DType type = DType::kF32;  // of matrices
  bool swapped_ffn = false;  // the names of ffn_up and ffn_down, as old converters had them
  int whole_layer_step = 2;  // qwen2.5vl: every n-th layer has no windows
  int deep_step = 2;         // qwen3vl: every n-th layer is a deep one
  int min_pixels = 0;        // of a picture; 0: no key
  // gemma4v: limits of the inputs and results of linear layers: 1: equal for matrices of the same input; 2: all differ.
  int limits = 0;
};

class VisionFileWriter {
 public:
  VisionFileWriter(const VisionFileShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {}

  Status Write(const std::string& path) {
    Keys();
    Patches();
    for (int i = 0; i < shape_.layers; ++i) Layer("v.blk." + std::to_string(i) + ".", i);
    if (is_gemma3()) Gemma3();
    if (is_gemma4()) Gemma4();
    if (is_qwen()) Qwen();
    if (is_pixtral()) Pixtral();
    return Save(path);
  }

 private:
  using Distribution = make_model::Distribution;
  struct Spec {
    std::string name;
    DType type;
    std::vector<std::int64_t> dims;
    Distribution distribution;
    float scale;
    bool is_scale;  // the only value
  };

  bool is_gemma3() const { return shape_.projector == "gemma3"; }
  bool is_gemma4() const { return shape_.projector == "gemma4v"; }
  bool is_qwen25() const { return shape_.projector == "qwen2.5vl_merger"; }
  bool is_qwen3() const { return shape_.projector == "qwen3vl_merger"; }
  bool is_qwen() const { return is_qwen25() || is_qwen3(); }
  bool is_pixtral() const { return shape_.projector == "pixtral"; }
  bool has_layer_norms() const { return is_gemma3() || is_qwen3(); }
  int token_width() const { return shape_.width * shape_.merge * shape_.merge; }

  void Add(std::string name, DType type, std::vector<std::int64_t> dims, Distribution distribution,
           float scale) {
    specs_.push_back({std::move(name), type, std::move(dims), distribution, scale, false});
  }
  void Matrix(const std::string& name, int inputs, int outputs, float gain = 1.0F) {
    // Blocks have 32 values; what does not fit is f16, as converters write it.
    const bool whole = inputs % InfoOf(shape_.type).block_size == 0;
    Add(name + ".weight", whole ? shape_.type : DType::kF16, {inputs, outputs},
        Distribution::kNormal, gain / std::sqrt(static_cast<float>(inputs)));
  }
  void Vector(const std::string& name, int size, float scale = 0.3F) {
    Add(name, DType::kF32, {size}, Distribution::kNormal, scale);
  }
  void Linear(const std::string& name, int inputs, int outputs, float gain = 1.0F) {
    Matrix(name, inputs, outputs, gain);
    Vector(name + ".bias", outputs);
  }
  void Rms(const std::string& name, int size) {
    Add(name + ".weight", DType::kF32, {size}, Distribution::kNorm, 1.0F);
  }
  // A norm of the tower's kind.
  void Norm(const std::string& name) {
    Rms(name, shape_.width);
    if (has_layer_norms()) Vector(name + ".bias", shape_.width);
  }

  void Keys() {
    header_.SetString("general.architecture", "clip");
    header_.SetString("general.type", "mmproj");
    header_.SetBool("clip.has_vision_encoder", true);
    header_.SetString("clip.projector_type", shape_.projector);
    header_.SetBool(has_layer_norms() || is_gemma4() ? "clip.use_gelu" : "clip.use_silu", true);
    const auto number = [&](const char* key, int value) {
      header_.SetUint32(std::string("clip.vision.") + key, static_cast<std::uint32_t>(value));
    };
    number("image_size", shape_.image_size);
    number("patch_size", shape_.patch_size);
    number("embedding_length", shape_.width);
    number("feed_forward_length", shape_.ffn);
    number("projection_dim", shape_.embedding_width);
    number("block_count", shape_.layers);
    number("attention.head_count", shape_.heads);
    header_.SetFloat32("clip.vision.attention.layer_norm_epsilon", 1e-6F);
    const float zeros[] = {0, 0, 0}, ones[] = {1, 1, 1};
    const float some_mean[] = {0.5F, 0.45F, 0.4F}, some_deviation[] = {0.5F, 0.25F, 0.3F};
    const std::span<const float> mean = is_gemma4() ? zeros : some_mean;
    const std::span<const float> deviation = is_gemma4() ? ones : some_deviation;
    header_.SetFloats("clip.vision.image_mean", mean);
    header_.SetFloats("clip.vision.image_std", deviation);
    number(is_gemma3() || is_gemma4() ? "projector.scale_factor" : "spatial_merge_size",
           shape_.merge);
    if (shape_.min_pixels > 0) number("image_min_pixels", shape_.min_pixels);
    if (is_qwen25()) number("n_wa_pattern", shape_.whole_layer_step);
    if (is_qwen3()) {
      const auto deep = std::make_unique<bool[]>(static_cast<std::size_t>(shape_.layers));
      for (int i = 0; i < shape_.layers; ++i) deep[static_cast<std::size_t>(i)] = IsDeep(i);
      header_.SetBools("clip.vision.is_deepstack_layers",
                       {deep.get(), static_cast<std::size_t>(shape_.layers)});
    }
  }
  bool IsDeep(int layer) const { return is_qwen3() && layer % shape_.deep_step == 0; }

  void Patches() {
    const int p = shape_.patch_size, side = shape_.image_size / p;
    const float scale = 1.0F / std::sqrt((is_qwen() ? 6.0F : 3.0F) * static_cast<float>(p * p));
    Add("v.patch_embd.weight", DType::kF32, {p, p, 3, shape_.width}, Distribution::kNormal, scale);
    if (is_qwen()) {
      Add("v.patch_embd.weight.1", DType::kF32, {p, p, 3, shape_.width}, Distribution::kNormal,
          scale);
    }
    if (has_layer_norms()) {
      Vector("v.patch_embd.bias", shape_.width);
      Add("v.position_embd.weight", DType::kF32, {shape_.width, side * side}, Distribution::kNormal,
          0.5F);
    }
    if (is_pixtral()) Norm("v.pre_ln");
    if (is_gemma4()) {  // of columns, and of rows
      Add("v.position_embd.weight", DType::kF32, {shape_.width, side, 2}, Distribution::kNormal,
          0.5F);
    }
  }

  // With biases, unless it is pixtral's.
  void LayerLinear(const std::string& name, int inputs, int outputs, float gain = 1.0F) {
    if (!is_pixtral() && !is_gemma4()) return Linear(name, inputs, outputs, gain);
    Matrix(name, inputs, outputs, gain);
    if (shape_.limits == 0) return;
    // They cut the larger values of some layers.
    const std::size_t kind = shape_.limits == 2           ? specs_.size() % 10
                             : name.ends_with("attn_out") ? 1
                             : name.ends_with("ffn_down") ? 2
                                                          : 3;
    const float limit = 1.0F + 0.1F * static_cast<float>(kind);
    Scalar(name + ".input_min", -limit);
    Scalar(name + ".input_max", limit + 0.25F);
    Scalar(name + ".output_min", -limit - 0.5F);
    Scalar(name + ".output_max", limit);
  }
  void Scalar(const std::string& name, float value) {
    Add(name, DType::kF32, {1}, Distribution::kNormal, value);
    specs_.back().is_scale = true;
  }

  void Layer(const std::string& prefix, int index) {
    const int width = shape_.width;
    // Scores of deviation 1.5: attention prefers some patches.
    constexpr float kGain = 1.25F;
    Norm(prefix + "ln1");
    if (is_qwen3()) {
      LayerLinear(prefix + "attn_qkv", width, 3 * width, kGain);
    } else {
      LayerLinear(prefix + "attn_q", width, width, kGain);
      LayerLinear(prefix + "attn_k", width, width, kGain);
      LayerLinear(prefix + "attn_v", width, width);
    }
    LayerLinear(prefix + "attn_out", width, width);
    if (is_gemma4()) {
      for (const char* name : {"attn_q_norm", "attn_k_norm"})
        Rms(prefix + name, width / shape_.heads);
      Norm(prefix + "attn_post_norm");
      Norm(prefix + "ffn_post_norm");
    }
    Norm(prefix + "ln2");
    LayerLinear(prefix + (shape_.swapped_ffn ? "ffn_down" : "ffn_up"), width, shape_.ffn);
    if (!has_layer_norms()) LayerLinear(prefix + "ffn_gate", width, shape_.ffn);
    LayerLinear(prefix + (shape_.swapped_ffn ? "ffn_up" : "ffn_down"), shape_.ffn, width);
    if (!IsDeep(index)) return;
    const std::string deep = "v.deepstack." + std::to_string(index) + ".";
    Rms(deep + "norm", token_width());
    Vector(deep + "norm.bias", token_width());
    Linear(deep + "fc1", token_width(), token_width());
    Linear(deep + "fc2", token_width(), shape_.embedding_width);
  }

  void Qwen() {
    Norm("v.post_ln");
    Linear("mm.0", token_width(), token_width());
    Linear("mm.2", token_width(), shape_.embedding_width);
  }

  void Gemma4() {
    Vector("v.std_bias", shape_.width);
    Add("v.std_scale", DType::kF32, {shape_.width}, Distribution::kNorm, 1.0F);
    Matrix("mm.input_projection", shape_.width, shape_.embedding_width);
  }

  // Mistral 3 if it merges patches.
  void Pixtral() {
    if (shape_.merge > 1) {
      Norm("mm.input_norm");
      Matrix("mm.patch_merger", token_width(), shape_.width);
    }
    Linear("mm.1", shape_.width, shape_.embedding_width);
    Linear("mm.2", shape_.embedding_width, shape_.embedding_width);
    Vector("v.token_embd.img_break", shape_.embedding_width, 1.0F);
  }

  void Gemma3() {
    Norm("v.post_ln");
    Rms("mm.soft_emb_norm", shape_.width);
    // Rows are inputs.
    Add("mm.input_projection.weight", DType::kF32, {shape_.embedding_width, shape_.width},
        Distribution::kNormal, 1.0F / std::sqrt(static_cast<float>(shape_.width)));
  }

  Status Save(const std::string& path) {
    for (const Spec& spec : specs_) header_.AddTensor(spec.name, GgmlTypeOf(spec.type), spec.dims);
    KVCACHE_ASSIGN_OR_RETURN(auto writer, GgufWriter::Create(path, std::move(header_)));
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const Spec& spec = specs_[i];
      std::size_t count = 1;
      for (const std::int64_t dim : spec.dims) count *= static_cast<std::size_t>(dim);
      std::vector<float> values(count);
      make_model::RandomWeights(seed_, spec.name).Fill(spec.distribution, spec.scale, 0, values);
      if (spec.is_scale) values[0] = spec.scale;
      std::vector<std::byte> bytes(
          static_cast<std::size_t>(BytesOf(spec.type, static_cast<std::int64_t>(count))));
      KVCACHE_RETURN_IF_ERROR(Quantize(spec.type, values, bytes));
      KVCACHE_RETURN_IF_ERROR(writer->Write(i, 0, bytes));
    }
    return writer->Finish();
  }

  VisionFileShape shape_;
  std::uint64_t seed_;
  GgufHeader header_;
  std::vector<Spec> specs_;
};

inline Status WriteVisionFile(const VisionFileShape& shape, std::uint64_t seed,
                              const std::string& path) {
  return VisionFileWriter(shape, seed).Write(path);
}

}  // namespace kvcache::vision_test
