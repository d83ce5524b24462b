// Projector files with random weights, for tests of vision towers: all that a family's published files have, in small.
//
// The bits depend on the shape and the seed alone. Users link kvcache_random_model.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
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
  std::string projector = "gemma3";
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
};

class VisionFileWriter {
 public:
  VisionFileWriter(const VisionFileShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {}

  Status Write(const std::string& path) {
    Keys();
    Patches();
    for (int i = 0; i < shape_.layers; ++i) Layer("v.blk." + std::to_string(i) + ".");
    if (shape_.projector == "gemma3") Gemma3();
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
  };

  void Add(std::string name, DType type, std::vector<std::int64_t> dims, Distribution distribution,
           float scale) {
    specs_.push_back({std::move(name), type, std::move(dims), distribution, scale});
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
  void Norm(const std::string& name, bool bias = true) {
    Add(name + ".weight", DType::kF32, {shape_.width}, Distribution::kNorm, 1.0F);
    if (bias) Vector(name + ".bias", shape_.width);
  }

  void Keys() {
    header_.SetString("general.architecture", "clip");
    header_.SetString("general.type", "mmproj");
    header_.SetBool("clip.has_vision_encoder", true);
    header_.SetString("clip.projector_type", shape_.projector);
    header_.SetBool("clip.use_gelu", true);
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
    const float mean[] = {0.5F, 0.45F, 0.4F}, deviation[] = {0.5F, 0.25F, 0.3F};
    header_.SetFloats("clip.vision.image_mean", mean);
    header_.SetFloats("clip.vision.image_std", deviation);
    if (shape_.projector == "gemma3") number("projector.scale_factor", shape_.merge);
  }

  void Patches() {
    const int p = shape_.patch_size, side = shape_.image_size / p;
    Add("v.patch_embd.weight", DType::kF32, {p, p, 3, shape_.width}, Distribution::kNormal,
        1.0F / std::sqrt(3.0F * static_cast<float>(p * p)));
    Vector("v.patch_embd.bias", shape_.width);
    Add("v.position_embd.weight", DType::kF32, {shape_.width, side * side}, Distribution::kNormal,
        0.5F);
  }

  void Layer(const std::string& prefix) {
    const int width = shape_.width;
    Norm(prefix + "ln1");
    // Scores of deviation 1.5: attention prefers some patches.
    for (const char* name : {"attn_q", "attn_k"}) Linear(prefix + name, width, width, 1.25F);
    Linear(prefix + "attn_v", width, width);
    Linear(prefix + "attn_out", width, width);
    Norm(prefix + "ln2");
    Linear(prefix + (shape_.swapped_ffn ? "ffn_down" : "ffn_up"), width, shape_.ffn);
    Linear(prefix + (shape_.swapped_ffn ? "ffn_up" : "ffn_down"), shape_.ffn, width);
  }

  void Gemma3() {
    Norm("v.post_ln");
    Norm("mm.soft_emb_norm", false);
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
