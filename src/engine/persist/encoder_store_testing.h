// Models with an encoder, and stores for their outputs.
//
// Thread safety: one thread at a time.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/persist/prefix_store.h"
#include "make_model/make_model.h"
#include "store/store_testing.h"

namespace kvcache {

struct EncoderCase {
  std::string name;
  bool is_ungated = false;
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int decoder_layers = 0;  // 0: as many as the encoder's
};

class EncoderStoreFixture : public ::testing::TestWithParam<EncoderCase> {
 protected:
  using Tokens = std::vector<std::int32_t>;
  static constexpr int kContext = 320;

  void SetUp() override { path_ = MakeModel(5); }
  void TearDown() override {
    for (const std::string& path : paths_) std::filesystem::remove(path);
  }

  std::string MakeModel(std::uint64_t seed, int decoder_layers = 0) {
    make_model::Request request{
        .architecture = "t5", .type = DType::kF32, .seed = seed, .threads = 1};
    request.shape.hidden_size = 64;
    request.shape.ffn = 96;
    request.shape.family.ungated = GetParam().is_ungated;
    request.shape.family.decoder_layers =
        decoder_layers > 0 ? decoder_layers : GetParam().decoder_layers;
    paths_.push_back(::testing::TempDir() + "encoder_store." + std::to_string(getpid()) + "." +
                     std::to_string(paths_.size()) + ".gguf");
    const Status made = make_model::MakeModel(request, paths_.back());
    EXPECT_TRUE(made.ok()) << made.message();
    return paths_.back();
  }
  static EngineOptions Options(int max_sequences = 1) {
    return {.threads = 1,
            .k_type = GetParam().k_type,
            .v_type = GetParam().v_type,
            .context = kContext,
            .max_sequences = max_sequences,
            .prefill_chunk = 64};
  }
  std::shared_ptr<Store> Disk() const {
    auto disk = OpenDiskStore({.directory = directory_.path()});
    EXPECT_TRUE(disk.ok()) << disk.status().message();
    return std::move(*disk);
  }
  static std::shared_ptr<Store> Memory() { return std::move(*MakeMemoryStore()); }
  // An engine as a new process has it; without a store for null.
  static std::unique_ptr<Engine> Open(const std::string& path, const EngineOptions& options,
                                      std::shared_ptr<Store> store,
                                      std::unique_ptr<Backend> backend = nullptr) {
    auto engine = Engine::Open(path, options, std::move(backend));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (store != nullptr) {
      const Status used = (*engine)->UseStore(std::move(store));
      EXPECT_TRUE(used.ok()) << used.message();
    }
    return std::move(*engine);
  }
  std::unique_ptr<Engine> Open(std::shared_ptr<Store> store) {
    return Open(path_, Options(), std::move(store));
  }
  static Tokens Text(int count, int first = 3) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(first + (i * 41 + i / 7) % 300);
    return tokens;
  }
  // Returns how many outputs a store has.
  static std::int64_t Outputs(Engine& engine) {
    const auto all = engine.prefix_store()->store().List();
    return std::count_if(all->begin(), all->end(), [&](const StoredObject& object) {
      return object.id.fingerprint == engine.prefix_store()->fingerprint();
    });
  }

  TestDirectory directory_;
  std::string path_;
  std::vector<std::string> paths_;
};

// The families of models with an encoder, with the types of the caches.
inline std::vector<EncoderCase> EncoderCases() {
  return {{"gated_f32", false, DType::kF32, DType::kF32},
          {"gated_f16", false},
          {"gated_bf16", false, DType::kBF16, DType::kBF16, 3},
          {"gated_q8_0", false, DType::kQ8_0, DType::kQ8_0},
          {"ungated_f16", true, DType::kF16, DType::kF16, 1},
          {"ungated_q4_0", true, DType::kQ8_0, DType::kQ4_0}};
}

}  // namespace kvcache
