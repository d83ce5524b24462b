// What a model answers over a backend, for tests that compare backends.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/snapshot.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "model/model.h"

namespace kvcache::model_run {

inline constexpr int kBatch = 8;
inline constexpr SequenceId kFirst{0}, kSecond{1};

// A file of a model with random weights; removed with the object.
class RandomModel {
 public:
  explicit RandomModel(const std::string& architecture, DType type = DType::kQ8_0)
      : path_(::testing::TempDir() + "model_run." + std::to_string(getpid()) + ".gguf") {
    make_model::Request request{.architecture = architecture, .type = type};
    const auto* const family = *make_model::FindArchitecture(architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 5;
    const bool has_small_layers =
        architecture.starts_with("nemotron_h") || architecture == "mamba2";
    if (has_small_layers) request.shape.layers = 4;
    const Status made = make_model::MakeModel(request, path_);
    EXPECT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }
  ~RandomModel() { std::filesystem::remove(path_); }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  const GgufFile& file() const { return *file_; }

 private:
  std::string path_;
  std::unique_ptr<GgufFile> file_;
};

// All architectures of which random models can be made.
inline std::vector<std::string> Architectures() {
  std::vector<std::string> names;
  for (const std::string& name : SupportedArchitectures()) {
    if (make_model::FindArchitecture(name).ok()) names.push_back(name);
  }
  return names;
}

// Returns a name of letters, digits and underscores for a test.
inline std::string TestName(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

struct KvTypes {
  DType k = DType::kF16;
  DType v = DType::kF16;
};

// What a model says of a text: logits of all tokens, and the final states.
struct Answers {
  std::vector<float> logits, states;
  bool operator==(const Answers&) const = default;
};

class ModelRun {
 public:
  ModelRun(const GgufFile& file, Backend& backend, const KvTypes& types = {})
      : backend_(backend), types_(types) {
    auto model = LoadModel(file, backend);
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (model.ok()) model_ = *std::move(model);
  }

  Answers Texts() {
    Check(model_->embedding()->ReserveTexts(kBatch, 2));
    const std::int32_t tokens[] = {3, 14, 15, 92, 65, 35};
    const std::int32_t lengths[] = {4, 2};
    Check(model_->embedding()->ForwardTexts(tokens, lengths, {}));
    Answers answers;
    AddStates(6, answers);
    return answers;
  }

  // Evaluates a text in two passes, moves its state through host memory, and goes on there.
  Answers Decode() {
    Answers answers;
    const std::vector<std::byte> state = Begin(answers);
    if (ok()) Continue(state, answers);
    return answers;
  }

  // Evaluates the text's beginning in two passes, and takes its state away.
  std::vector<std::byte> Begin(Answers& answers) {
    MakeCache();
    Pass({3, 14, 15, 92, 65}, 0, kFirst, answers);
    Pass({35}, 5, kFirst, answers);
    return ok() ? TakeState(kFirst, 6) : std::vector<std::byte>();
  }
  // Goes on from a state of Begin.
  void Continue(const std::vector<std::byte>& state, Answers& answers) {
    if (cache_ == nullptr) MakeCache();
    auto imported = cache_->snapshots()->Import(state);
    Check(imported.status());
    if (ok()) Check(cache_->snapshots()->Restore(kSecond, imported->get(), 6));
    if (ok()) Pass({7, 8}, 6, kSecond, answers);
  }

  Model& model() { return *model_; }
  bool ok() const { return ok_ && model_ != nullptr; }

 private:
  void Check(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.message();
    ok_ = ok_ && status.ok();
  }

  void MakeCache() {
    cache_ = model_->MakeCache();
    Check(cache_->Init(backend_, {.k_type = types_.k,
                                  .v_type = types_.v,
                                  .max_sequences = 2,
                                  .capacity = 128,
                                  .max_batch = kBatch}));
    Check(model_->Reserve(kBatch));
  }

  // Returns the bytes of a sequence's snapshot, and removes the sequence.
  std::vector<std::byte> TakeState(SequenceId sequence, Position end) {
    CacheSnapshots& snapshots = *cache_->snapshots();
    auto taken = snapshots.TakeSnapshot(sequence, 0, end);
    Check(taken.status());
    if (!ok_) return {};
    const auto size = snapshots.ExportSize(**taken);
    Check(size.status());
    if (!ok_) return {};
    std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
    Check(snapshots.Export(**taken, bytes));
    Check(cache_->Remove(sequence, 0, kEndOfSequence));
    return bytes;
  }

  void AddStates(std::size_t count, Answers& answers) {
    const auto size = static_cast<std::size_t>(model_->info().hidden_size);
    std::vector<std::int32_t> rows(count);
    for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<std::int32_t>(i);
    const std::size_t at = answers.states.size();
    answers.states.resize(at + size * count);
    Check(model_->FinalStates(rows, answers.states.data() + at));
  }

  void Pass(std::vector<std::int32_t> tokens, Position first, SequenceId sequence,
            Answers& answers) {
    std::vector<Position> positions;
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      positions.push_back(first + static_cast<Position>(i));
      rows.push_back(static_cast<std::int32_t>(i));
    }
    const std::vector<SequenceId> sequences(tokens.size(), sequence);
    Check(cache_->StartForward({.positions = positions, .sequences = sequences, .items = {}},
                               ForwardMode::kCompute));
    if (!ok_) return;
    Check(model_->Forward(tokens, positions, *cache_));
    if (!ok_) return;
    const auto vocabulary = static_cast<std::size_t>(model_->info().vocabulary);
    const std::size_t at = answers.logits.size();
    answers.logits.resize(at + vocabulary * tokens.size());
    Check(model_->Logits(rows, answers.logits.data() + at));
    AddStates(tokens.size(), answers);
  }

  Backend& backend_;
  KvTypes types_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
  bool ok_ = true;
};

inline Answers AnswersOf(const GgufFile& file, Backend& backend, const KvTypes& types = {}) {
  ModelRun run(file, backend, types);
  if (!run.ok()) return {};
  Answers answers = run.model().info().is_encoder ? run.Texts() : run.Decode();
  EXPECT_TRUE(run.ok());
  return answers;
}

// The beginning over `first`, the rest over `second`.
inline Answers AnswersOver(const GgufFile& file, Backend& first, Backend& second,
                           const KvTypes& types = {}) {
  ModelRun begins(file, first, types);
  ModelRun goes_on(file, second, types);
  if (!begins.ok() || !goes_on.ok()) return {};
  Answers answers;
  const std::vector<std::byte> state = begins.Begin(answers);
  if (begins.ok()) goes_on.Continue(state, answers);
  EXPECT_TRUE(goes_on.ok());
  return answers;
}

}  // namespace kvcache::model_run
