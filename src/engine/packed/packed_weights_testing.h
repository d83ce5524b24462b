// A folder of packed weights and small models, for the tests of both.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/packed/packed_folder.h"
#include "engine/packed/packed_weights.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/panel_store.h"
#include "kvcache_engine/engine.h"
#include "make_model/make_model.h"
#include "model/load/model_digest.h"
#include "model/model.h"
#include "platform/mapped_file_faults.h"
#include "platform/system_memory.h"
#include "platform/wall_clock.h"

namespace kvcache::packed_weights_testing {

namespace fs = std::filesystem;
using make_model::Request;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Report = packed::ModelPanels::Report;

// All files are old.
inline std::int64_t InAnHour() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch() + std::chrono::hours(1))
      .count();
}

class PackedWeightsTest : public ::testing::Test {
 protected:
  PackedWeightsTest() { Use(); }
  ~PackedWeightsTest() override {
    kvcache::UsePackedWeights({});
    fs::remove_all(root_);
  }

  // Every weight is kept, in folder_.
  void Use() { UseBudget(PackedWeightsOptions::kDefaultBudget); }
  void UseBudget(std::uint64_t bytes) {
    PackedWeightsOptions options;
    options.budget_bytes = bytes;
    options.directory = folder_;
    options.min_bytes = 0;
    options.tell = [this](Report report, const std::string& text) {
      const std::lock_guard lock(mutex_);
      auto& texts = report == Report::kDone     ? done_
                    : report == Report::kNoRoom ? no_room_
                                                : problems_;
      texts.push_back(text);
    };
    kvcache::UsePackedWeights(std::move(options));
  }

  static std::string MakeRoot() {
    std::string name = ::testing::TempDir() + "packed_weights_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return name;
  }

  // 4.6 million weights: the panels are more than one piece.
  std::string Write(const std::string& name, DType type, std::uint64_t seed = 1) {
    Request request{.type = type, .seed = seed, .threads = 1};
    request.shape.layers = 2;
    request.shape.hidden_size = 512;
    request.shape.heads = 8;
    request.shape.kv_heads = 4;
    request.shape.head_dim = 64;
    request.shape.ffn = 1024;
    request.shape.vocab = 700;
    request.shape.context = 64;
    std::string path = StrCat(root_, "/", name);
    const Status status = make_model::MakeModel(request, path);
    EXPECT_TRUE(status.ok()) << status.message();
    return path;
  }

  static std::unique_ptr<Engine> Open(const std::string& path) {
    auto engine = Engine::Open(path, {.threads = 2, .gpu_layers = 0, .context = 64});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static std::vector<float> LogitsOf(Engine& engine) {
    const std::int32_t tokens[] = {3, 70, 141};
    const Position positions[] = {0, 1, 2};
    const SequenceId sequences[] = {SequenceId{0}, SequenceId{0}, SequenceId{0}};
    const std::int32_t rows[] = {0, 1, 2};
    EXPECT_TRUE(engine.cache().Remove(sequences[0], 0, kEndOfSequence).ok());
    EXPECT_TRUE(
        engine.Forward({.tokens = tokens, .positions = positions, .sequences = sequences}).ok());
    std::vector<float> logits(static_cast<std::size_t>(3 * engine.vocabulary_size()));
    EXPECT_TRUE(engine.Logits(rows, logits.data()).ok());
    return logits;
  }

  // Loads the model, waits until its weights are kept, and computes.
  static std::vector<float> Compute(const std::string& path) {
    const auto engine = Open(path);
    FlushPackedWeights();
    return LogitsOf(*engine);
  }

  static std::vector<float> ComputeWithout(const std::string& path) {
    kvcache::UsePackedWeights({});
    return Compute(path);
  }

  std::string FileOf(const std::string& model) const {
    return packed::PathOf(folder_, model, layout_);
  }

  // Changes a byte of a file.
  static void Flip(const std::string& path, std::uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 0x20);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

  std::vector<std::string> TakeProblems() {
    const std::lock_guard lock(mutex_);
    return std::exchange(problems_, {});
  }
  std::vector<std::string> TakeNoRoom() {
    const std::lock_guard lock(mutex_);
    return std::exchange(no_room_, {});
  }
  std::vector<std::string> TakeDone() {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
  std::vector<std::string> FilesInFolder() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_))
      names.push_back(file.path().filename());
    return names;
  }

  const std::string root_ = MakeRoot();
  const std::string folder_ = root_ + "/cache/packed";
  const std::uint64_t layout_ =
      dynamic_cast<PanelUser&>(*std::move(MakeCpuBackend({.threads = 1})).value()).panel_layout();
  const WallClockForTests clock_{&InAnHour};
  std::mutex mutex_;
  std::vector<std::string> done_, no_room_, problems_;
};

}  // namespace kvcache::packed_weights_testing
