// Files of random weights that tests write anew with other names and tensors, and their logits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "kvcache/cpu_backend.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "model/model.h"

namespace kvcache::testing {

// A tensor of the new file.
struct NewTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> dims;
  std::vector<std::byte> bytes;
};

// Returns a copy of the tensor.
inline NewTensor CopyOf(const GgufTensor& tensor) {
  return {std::string(tensor.name),
          tensor.type->type,
          {tensor.dims.begin(), tensor.dims.begin() + tensor.rank},
          {tensor.bytes.begin(), tensor.bytes.end()}};
}

// Returns the bytes of a file with this header and these tensors.
inline std::string FileOf(GgufHeader header, std::span<const NewTensor> tensors) {
  for (const NewTensor& tensor : tensors) header.AddTensor(tensor.name, tensor.type, tensor.dims);
  std::string bytes = *header.Serialize();
  const std::size_t data = bytes.size();
  bytes.resize(data + header.data_bytes());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::memcpy(bytes.data() + data + header.tensors()[i].offset, tensors[i].bytes.data(),
                tensors[i].bytes.size());
  }
  return bytes;
}

class RewrittenFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "rewritten." + std::to_string(getpid()) + ".gguf";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Makes file_, of f32 weights.
  void Make(make_model::Request request) {
    const auto* const family = *make_model::FindArchitecture(request.architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 5;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }

  // Returns the logits of the last of six tokens; none after an error.
  std::vector<float> Logits(const GgufFile& file, std::string_view architecture) {
    auto model = LoadModel(file, *backend_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (!model.ok()) return {};
    EXPECT_EQ((*model)->info().architecture, architecture);
    const auto cache = (*model)->MakeCache();
    EXPECT_TRUE(cache->Init(*backend_, {.max_sequences = 1, .capacity = 64, .max_batch = 8}).ok());
    EXPECT_TRUE((*model)->Reserve(8).ok());
    const std::vector<std::int32_t> tokens = {3, 14, 15, 92, 65, 35};
    const std::vector<Position> positions = {0, 1, 2, 3, 4, 5};
    const std::vector<SequenceId> sequences(6, SequenceId{0});
    EXPECT_TRUE(cache
                    ->StartForward({.positions = positions, .sequences = sequences, .items = {}},
                                   ForwardMode::kCompute)
                    .ok());
    EXPECT_TRUE((*model)->Forward(tokens, positions, *cache).ok());
    std::vector<float> logits(static_cast<std::size_t>((*model)->info().vocabulary));
    const std::int32_t row[] = {5};
    EXPECT_TRUE((*model)->Logits(row, logits.data()).ok());
    return logits;
  }
  std::vector<float> LogitsOf(const std::string& bytes, std::string_view architecture) {
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m");
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? Logits(**file, architecture) : std::vector<float>();
  }

  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 1})).value();
  std::string path_;
  std::unique_ptr<GgufFile> file_;
};

}  // namespace kvcache::testing
