// A model has the same bits with packed weights, whatever happens to their files.
#include "engine/packed/packed_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
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
#include "kvcache_engine/engine.h"
#include "make_model/make_model.h"
#include "model/load/model_digest.h"
#include "platform/system_memory.h"
#include "platform/wall_clock.h"

namespace kvcache::packed_weights_test {
namespace {

namespace fs = std::filesystem;
using make_model::Request;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Report = packed::ModelPanels::Report;

// All files are old.
std::int64_t InAnHour() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch() + std::chrono::hours(1))
      .count();
}

class PackedWeightsTest : public ::testing::Test {
 protected:
  PackedWeightsTest() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    Use();
  }
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
      (report == Report::kDone ? done_ : problems_).push_back(text);
    };
    kvcache::UsePackedWeights(std::move(options));
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

  std::string FileOf(const std::string& model) const { return PackedWeightsFile(folder_, model); }

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

  const std::string root_ = StrCat(::testing::TempDir(), "packed_weights_test");
  const std::string folder_ = root_ + "/cache/packed";
  const WallClockForTests clock_{&InAnHour};
  std::mutex mutex_;
  std::vector<std::string> done_, problems_;
};

TEST_F(PackedWeightsTest, GiveTheSameBits) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kF16}) {
    SCOPED_TRACE(InfoOf(type).name);
    const std::string model = Write("model.gguf", type);
    const std::vector<float> expected = ComputeWithout(model);
    Use();
    EXPECT_EQ(Compute(model), expected);
    const bool is_kept = type != DType::kF16;  // its rows are used in place
    EXPECT_EQ(TakeDone().size(), is_kept ? 1u : 0u);
    EXPECT_EQ(fs::exists(FileOf(model)), is_kept);
    EXPECT_EQ(Compute(model), expected);
    EXPECT_THAT(TakeDone(), IsEmpty());
    EXPECT_THAT(TakeProblems(), IsEmpty());
    fs::remove(FileOf(model));
  }
}

TEST_F(PackedWeightsTest, DamagedPanelsArePackedAgain) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  const std::string file = FileOf(model);
  TakeDone();
  for (const std::uint64_t at : {2u << 20, 4u << 20, (4u << 20) + 12'345u}) {
    Flip(file, at);
    {
      const auto engine = Open(model);
      EXPECT_THAT(TakeProblems(), IsEmpty());
      EXPECT_EQ(LogitsOf(*engine), expected);
      EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("packed weights are damaged: " + file)));
      EXPECT_FALSE(fs::exists(file));
      EXPECT_EQ(LogitsOf(*engine), expected);
    }
    EXPECT_EQ(Compute(model), expected);
    EXPECT_EQ(TakeDone().size(), 1u);
  }
}

TEST_F(PackedWeightsTest, FilesOfNoUseAreRefusedAndReplaced) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  const std::string file = FileOf(model);
  const std::string kept = root_ + "/kept";
  fs::copy_file(file, kept);
  const std::string other = Write("other.gguf", DType::kQ8_0, 2);
  (void)Compute(other);
  struct Case {
    const char* reason;
    std::function<void()> spoil;
  };
  const std::vector<Case> cases = {
      {"its header is damaged", [&] { Flip(file, 40); }},
      {"has version 33 of the format; this program reads 1", [&] { Flip(file, 8); }},
      {"its table is damaged", [&] { Flip(file, fs::file_size(file) - 1); }},
      {"bytes of ", [&] { fs::resize_file(file, fs::file_size(file) - 4096); }},
      {"less than its header takes", [&] { fs::resize_file(file, 0); }},
      {"it was made of another model's file",
       [&] { fs::copy_file(FileOf(other), file, fs::copy_options::overwrite_existing); }},
      {"other users can write to it",
       [&] { fs::permissions(file, fs::perms::others_write, fs::perm_options::add); }},
      {"it is a directory",
       [&] {
         fs::remove(file);
         fs::create_directory(file);
       }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.reason);
    fs::remove(file);
    fs::copy_file(kept, file);
    wrong.spoil();
    TakeDone();
    TakeProblems();
    EXPECT_EQ(Compute(model), expected);
    const std::vector<std::string> problems = TakeProblems();
    ASSERT_FALSE(problems.empty());
    EXPECT_THAT(problems.front(), HasSubstr("packed weights are not used: "));
    EXPECT_THAT(problems.front(), HasSubstr(file));
    EXPECT_THAT(problems.front(), HasSubstr(wrong.reason));
    if (fs::is_directory(file)) continue;  // somebody else's: it stays
    EXPECT_EQ(TakeDone().size(), 1u);
    EXPECT_EQ(Compute(model), expected);
    EXPECT_THAT(TakeProblems(), IsEmpty());
  }
}

TEST_F(PackedWeightsTest, AChangedModelIsPackedAgain) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  (void)Compute(model);
  (void)Write("model.gguf", DType::kQ8_0, 2);
  const std::vector<float> expected = ComputeWithout(model);
  Use();
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("it was made of another model's file")));
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), IsEmpty());
}

// A model that has just changed may change again without a new time.
TEST_F(PackedWeightsTest, ANewFileIsNotKept) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  {
    const WallClockForTests now([] { return InAnHour() - std::int64_t{3'600'000'000'000}; });
    (void)Compute(model);
  }
  EXPECT_THAT(TakeDone(), IsEmpty());
  EXPECT_FALSE(fs::exists(FileOf(model)));
}

// A size limit stands in for a full disk.
TEST_F(PackedWeightsTest, AFullDiskStopsNothing) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = ComputeWithout(model);
  Use();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limited = before;
  limited.rlim_cur = 3 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  const std::vector<float> logits = Compute(model);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(logits, expected);
  EXPECT_THAT(TakeProblems(),
              ElementsAre(HasSubstr("packed weights are not kept: cannot make room")));
  EXPECT_THAT(FilesInFolder(), IsEmpty());
}

TEST_F(PackedWeightsTest, AFolderThatCannotBeMadeStopsNothing) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = ComputeWithout(model);
  std::ofstream(root_ + "/cache") << "a file";
  Use();
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("packed weights are not kept: ")));
  fs::remove(root_ + "/cache");
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("other users can write to the directory")));
}

TEST_F(PackedWeightsTest, AModelThatGoesAtOnceLeavesNothingBehind) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  for (int i = 0; i < 10; ++i) {
    (void)Open(model);
    FlushPackedWeights();
    if (fs::exists(folder_)) {
      for (const std::string& name : FilesInFolder())
        EXPECT_EQ(folder_ + "/" + name, FileOf(model));
    }
  }
  EXPECT_THAT(TakeProblems(), IsEmpty());
}

TEST_F(PackedWeightsTest, SeveralEnginesWriteAndReadOneFile) {
  const std::string model = Write("model.gguf", DType::kQ4_K);
  const std::vector<float> expected = ComputeWithout(model);
  Use();
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> logits(4);
  for (std::vector<float>& own : logits) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) own = Compute(model);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& own : logits) EXPECT_EQ(own, expected);
  EXPECT_THAT(TakeProblems(), IsEmpty());
  EXPECT_EQ(FilesInFolder().size(), 1u);
}

TEST_F(PackedWeightsTest, TheOldestFilesGoFirst) {
  std::vector<std::string> models;
  for (const char* const name : {"a.gguf", "b.gguf", "c.gguf"}) {
    models.push_back(Write(name, DType::kQ8_0, 1 + models.size()));
  }
  (void)Compute(models[0]);
  const std::uint64_t size = fs::file_size(FileOf(models[0]));
  UseBudget(2 * size);
  (void)Compute(models[1]);
  fs::last_write_time(FileOf(models[1]), fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::last_write_time(FileOf(models[0]), fs::file_time_type::clock::now() - std::chrono::hours(3));
  (void)Compute(models[0]);  // used now
  (void)Compute(models[2]);
  EXPECT_TRUE(fs::exists(FileOf(models[0])));
  EXPECT_FALSE(fs::exists(FileOf(models[1])));
  EXPECT_TRUE(fs::exists(FileOf(models[2])));
  EXPECT_THAT(TakeProblems(), IsEmpty());
  UseBudget(size - 1);
  (void)Compute(models[1]);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("and all may take")));
  EXPECT_TRUE(fs::exists(FileOf(models[0])));
  EXPECT_EQ(ClearPackedWeights(folder_), 2);
  EXPECT_THAT(FilesInFolder(), IsEmpty());
  EXPECT_EQ(ClearPackedWeights(folder_), 0);
}

TEST_F(PackedWeightsTest, SmallModelsAreNotKept) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  PackedWeightsOptions options;
  options.directory = folder_;
  kvcache::UsePackedWeights(std::move(options));
  (void)Compute(model);
  EXPECT_FALSE(fs::exists(folder_));
}

// The samples of a digest are all over a file that nothing else reads.
TEST_F(PackedWeightsTest, TheDigestOfTheModelIsKeptToo) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::uint64_t digest = ModelDigest(Open(model)->file());
  (void)Compute(model);
  const auto engine = Open(model);
  RememberModelDigest(engine->file().identity(), digest + 1);
  EXPECT_EQ(ModelDigest(engine->file()), digest + 1);
  const auto again = Open(model);
  EXPECT_EQ(ModelDigest(again->file()), digest);
}

// The system would count the mapped pages as free.
TEST_F(PackedWeightsTest, MappedWeightsAreNoFreeMemory) {
  const std::string root = root_ + "/system";
  fs::create_directories(root + "/proc");
  std::ofstream(root + "/proc/meminfo") << "MemAvailable: 1048576 kB\n";
  const std::int64_t before = *AvailableMemory(root);
  const std::string model = Write("model.gguf", DType::kQ8_0);
  (void)Compute(model);
  EXPECT_EQ(*AvailableMemory(root), before);
  {
    const auto engine = Open(model);
    EXPECT_EQ(*AvailableMemory(root),
              before - static_cast<std::int64_t>(fs::file_size(FileOf(model))));
  }
  EXPECT_EQ(*AvailableMemory(root), before);
}

}  // namespace
}  // namespace kvcache::packed_weights_test
