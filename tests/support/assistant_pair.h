// A random gemma4 model, and a draft head for it that is often right: it has the model's own feed-forward
// parts, reads the token's embedding alone, and the attention of both counts for little.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "make_model/make_model.h"

namespace kvcache::testing {

// Changes the values of a tensor, which is f32.
using ChangeTensor = std::function<void(const GgufTensor& tensor, std::span<float> values)>;

// Replaces the file by one with other values.
inline void RewriteTensors(const std::string& path, const ChangeTensor& change) {
  const auto file = GgufFile::Open(path).value();
  GgufHeader header;
  for (const GgufEntry& entry : file->entries()) header.SetEntry(entry);
  for (const GgufTensor& tensor : file->tensors()) {
    header.AddTensor(tensor.name, tensor.type->type,
                     std::span(tensor.dims).first(static_cast<std::size_t>(tensor.rank)));
  }
  const auto writer = GgufWriter::Create(path, std::move(header)).value();
  std::size_t index = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    change(tensor, values);
    ASSERT_TRUE(writer->Write(index++, 0, std::as_bytes(std::span(values))).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

class AssistantPair {
 public:
  static constexpr int kWindow = 24;

  // Writes both files into `folder`, which is created, and removed at the end. `attention`: its factor in
  // the model.
  explicit AssistantPair(std::string folder, float attention = 0.15f) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    make_model::Request request{.architecture = "gemma4", .type = DType::kF32};
    request.shape.head_dim = 64;
    request.shape.window = kWindow;
    EXPECT_TRUE(make_model::MakeModel(request, model()).ok());
    RewriteTensors(model(), [&](const GgufTensor& tensor, std::span<float> values) {
      Weaken(tensor, attention, values);
    });
    // Weights depend on the seed and on the tensor's name, so that the common ones are equal.
    request.architecture = "gemma4-assistant";
    request.shape.family.target_size = request.shape.hidden_size;
    EXPECT_TRUE(make_model::MakeModel(request, head()).ok());
    RewriteTensors(head(), [&](const GgufTensor& tensor, std::span<float> values) {
      Weaken(tensor, 0.1f, values);
      if (tensor.name != "nextn.pre_projection.weight") return;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto inputs = static_cast<std::size_t>(tensor.dims[0]);
        values[i] = i % inputs == i / inputs ? 1.0f : 0.01f * values[i];
      }
    });
  }
  ~AssistantPair() { std::filesystem::remove_all(folder_); }
  AssistantPair(const AssistantPair&) = delete;
  AssistantPair& operator=(const AssistantPair&) = delete;

  std::string model() const { return folder_ + "/model.gguf"; }
  std::string head() const { return folder_ + "/head.gguf"; }

 private:
  // post_norm is that of a layer's input vector, which the head lacks.
  static void Weaken(const GgufTensor& tensor, float attention, std::span<float> values) {
    float factor = 1.0f;
    if (tensor.name.ends_with(".post_attention_norm.weight")) factor = attention;
    if (tensor.name.ends_with(".post_norm.weight")) factor = 0.1f * attention;
    for (float& value : values) value *= factor;
  }

  std::string folder_;
};

}  // namespace kvcache::testing
