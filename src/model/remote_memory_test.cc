// A model over a backend whose memory the host cannot touch gives the logits of the CPU backend. Kernels get
// addresses of the backend alone: weights, activations, states, cells.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/split/split_backend.h"
#include "gguf/gguf.h"
#include "kvcache/cpu_backend.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "model/model.h"
#include "support/remote_backend.h"

namespace kvcache::remote_memory_test {
namespace {

constexpr int kBatch = 8;
constexpr SequenceId kFirst{0}, kSecond{1};

std::unique_ptr<Backend> Cpu() {
  return std::move(MakeCpuBackend({.threads = 1})).value();
}

class RemoteMemory : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "remote_memory." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam(), .type = DType::kQ8_0};
    const auto* const family = *make_model::FindArchitecture(request.architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 5;
    const bool has_small_layers =
        request.architecture.starts_with("nemotron_h") || request.architecture == "mamba2";
    if (has_small_layers) request.shape.layers = 4;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
  std::unique_ptr<GgufFile> file_;
};

// What a model says of a text: logits of all tokens, and the final states.
struct Answers {
  std::vector<float> logits, states;
  bool operator==(const Answers&) const = default;
};

class ModelRun {
 public:
  ModelRun(const GgufFile& file, Backend& backend) : backend_(backend) {
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
    cache_ = model_->MakeCache();
    Check(cache_->Init(backend_, {.k_type = DType::kF16,
                                  .v_type = DType::kF16,
                                  .max_sequences = 2,
                                  .capacity = 128,
                                  .max_batch = kBatch}));
    Check(model_->Reserve(kBatch));
    Answers answers;
    Pass({3, 14, 15, 92, 65}, 0, kFirst, answers);
    Pass({35}, 5, kFirst, answers);
    MoveThroughHost(kFirst, kSecond, 6);
    Pass({7, 8}, 6, kSecond, answers);
    return answers;
  }

  Model& model() { return *model_; }
  bool ok() const { return ok_ && model_ != nullptr; }

 private:
  void Check(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.message();
    ok_ = ok_ && status.ok();
  }

  // Makes `to` the copy of `from`, whose bytes have been in host memory, and removes `from`.
  void MoveThroughHost(SequenceId from, SequenceId to, Position end) {
    CacheSnapshots& snapshots = *cache_->snapshots();
    auto taken = snapshots.TakeSnapshot(from, 0, end);
    Check(taken.status());
    if (!ok_) return;
    const auto size = snapshots.ExportSize(**taken);
    Check(size.status());
    if (!ok_) return;
    std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
    Check(snapshots.Export(**taken, bytes));
    Check(cache_->Remove(from, 0, kEndOfSequence));
    auto imported = snapshots.Import(bytes);
    Check(imported.status());
    if (ok_) Check(snapshots.Restore(to, imported->get(), end));
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
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
  bool ok_ = true;
};

Answers AnswersOf(const GgufFile& file, Backend& backend) {
  ModelRun run(file, backend);
  if (!run.ok()) return {};
  Answers answers = run.model().info().is_encoder ? run.Texts() : run.Decode();
  EXPECT_TRUE(run.ok());
  return answers;
}

TEST_P(RemoteMemory, GivesTheSameAnswers) {
  const Answers expected = AnswersOf(*file_, *Cpu());
  EXPECT_NE(std::ranges::max(expected.states), 0.0f);
  testing::RemoteBackend remote(Cpu());
  EXPECT_EQ(AnswersOf(*file_, remote), expected);
}

// The first layer belongs to one backend, the others to the other.
TEST_P(RemoteMemory, GivesTheSameAnswersWhenLayersAreDivided) {
  const Answers expected = AnswersOf(*file_, *Cpu());
  SplitBackend remote_behind(Cpu(), std::make_unique<testing::RemoteBackend>(Cpu()), 1);
  EXPECT_EQ(AnswersOf(*file_, remote_behind), expected);
  SplitBackend remote_before(std::make_unique<testing::RemoteBackend>(Cpu()), Cpu(), 1);
  EXPECT_EQ(AnswersOf(*file_, remote_before), expected);
  SplitBackend both(std::make_unique<testing::RemoteBackend>(Cpu()),
                    std::make_unique<testing::RemoteBackend>(Cpu()), 1);
  EXPECT_EQ(AnswersOf(*file_, both), expected);
}

std::vector<std::string> Architectures() {
  std::vector<std::string> names;
  for (const std::string& name : SupportedArchitectures()) {
    if (make_model::FindArchitecture(name).ok()) names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, RemoteMemory, ::testing::ValuesIn(Architectures()),
                         [](const ::testing::TestParamInfo<std::string>& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A kernel that gets an address of the host fails, and the host cannot read a buffer of the backend.
TEST(RemoteBackend, RefusesAddressesOfTheHost) {
  testing::RemoteBackend backend(Cpu());
  const auto buffer = std::move(backend.Allocate(64)).value();
  std::vector<float> values(16, 1.0f);
  const TensorView own = TensorView::Dense(buffer->data(), DType::kF32, 16);
  const TensorView host = TensorView::Dense(values.data(), DType::kF32, 16);
  ASSERT_TRUE(backend.CopyFromHost(std::as_bytes(std::span(values)), own).ok());
  EXPECT_TRUE(backend.Scale(own, 2.0f).ok());
  EXPECT_EQ(backend.Scale(host, 2.0f).code(), StatusCode::kInternal);
  EXPECT_EQ(backend.Add(own, host).code(), StatusCode::kInternal);
  EXPECT_EQ(backend.Scale(TensorView::Dense(buffer->data(), DType::kF32, 17), 2.0f).code(),
            StatusCode::kInternal);
  ASSERT_TRUE(backend.CopyToHost(own, std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values, std::vector<float>(16, 2.0f));
}

}  // namespace
}  // namespace kvcache::remote_memory_test
