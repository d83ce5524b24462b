// A model has the same bits with packed weights, whatever happens to their files.
#include "engine/packed/packed_weights.h"

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
#include "kvcache/cpu_backend.h"
#include "kvcache/panel_store.h"
#include "kvcache_engine/engine.h"
#include "make_model/make_model.h"

#include "model/load/model_digest.h"
#include "model/model.h"
#include "platform/mapped_file_faults.h"
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
      {"has version 34 of the format; this program reads 2", [&] { Flip(file, 8); }},
      {"its table is damaged", [&] { Flip(file, fs::file_size(file) - 1); }},
      {"bytes of ", [&] { fs::resize_file(file, fs::file_size(file) - 4096); }},
      {"less than its header takes", [&] { fs::resize_file(file, 0); }},
      {"it was made of another model's file",
       [&] { fs::copy_file(FileOf(other), file, fs::copy_options::overwrite_existing); }},
      {"other users can write to it",
       [&] { fs::permissions(file, fs::perms::others_write, fs::perm_options::add); }},
      {"it is not a regular file",
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
  EXPECT_THAT(TakeProblems(), IsEmpty());
  EXPECT_THAT(TakeNoRoom(),
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
  fs::last_write_time(FileOf(models[1]), fs::file_time_type::clock::now() - std::chrono::hours(48));
  fs::last_write_time(FileOf(models[0]), fs::file_time_type::clock::now() - std::chrono::hours(72));
  (void)Compute(models[0]);  // used now
  (void)Compute(models[2]);
  EXPECT_TRUE(fs::exists(FileOf(models[0])));
  EXPECT_FALSE(fs::exists(FileOf(models[1])));
  EXPECT_TRUE(fs::exists(FileOf(models[2])));
  EXPECT_THAT(TakeProblems(), IsEmpty());
  UseBudget(size - 1);
  (void)Compute(models[1]);
  EXPECT_THAT(TakeNoRoom(), ElementsAre(HasSubstr("and all may take")));
  EXPECT_THAT(TakeProblems(), IsEmpty());
  EXPECT_TRUE(fs::exists(FileOf(models[0])));
  EXPECT_EQ(ClearPackedWeights(folder_), 2);
  EXPECT_THAT(FilesInFolder(), IsEmpty());
  EXPECT_EQ(ClearPackedWeights(folder_), 0);
}

// They would write gigabytes at every start.
TEST_F(PackedWeightsTest, ModelsInTurnsDoNotRemoveEachOthersFiles) {
  const std::string one = Write("one.gguf", DType::kQ8_0, 1);
  const std::string two = Write("two.gguf", DType::kQ8_0, 2);
  (void)Compute(one);
  UseBudget(fs::file_size(FileOf(one)) * 3 / 2);
  (void)Compute(two);
  (void)Compute(two);
  EXPECT_THAT(TakeNoRoom(), ElementsAre(HasSubstr("that were used within a day")));  // once
  EXPECT_TRUE(fs::exists(FileOf(one)));
  EXPECT_FALSE(fs::exists(FileOf(two)));
}

// No bytes are gained by their removal, and whoever uses them would write them again.
TEST_F(PackedWeightsTest, MappedFilesStay) {
  const std::string one = Write("one.gguf", DType::kQ8_0, 1);
  const std::string two = Write("two.gguf", DType::kQ8_0, 2);
  (void)Compute(one);
  UseBudget(fs::file_size(FileOf(one)) * 3 / 2);
  {
    const auto engine = Open(one);
    fs::last_write_time(FileOf(one), fs::file_time_type::clock::now() - std::chrono::hours(48));
    (void)Compute(two);
    EXPECT_TRUE(fs::exists(FileOf(one)));
    EXPECT_FALSE(fs::exists(FileOf(two)));
  }
  (void)Compute(two);
  EXPECT_FALSE(fs::exists(FileOf(one)));
  EXPECT_TRUE(fs::exists(FileOf(two)));
}

TEST_F(PackedWeightsTest, FilesWhoseModelIsGoneAreRemoved) {
  const std::string one = Write("one.gguf", DType::kQ8_0, 1);
  const std::string two = Write("two.gguf", DType::kQ8_0, 2);
  (void)Compute(one);
  const std::string file = FileOf(one);
  fs::rename(one, root_ + "/elsewhere.gguf");
  (void)Compute(two);
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(fs::exists(FileOf(two)));
  EXPECT_THAT(TakeProblems(), IsEmpty());
}

TEST_F(PackedWeightsTest, AModelThatWasRemovedLeavesNoFile) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::string file = FileOf(model);
  auto backend = std::move(MakeCpuBackend({.threads = 1})).value();
  auto gguf = std::move(GgufFile::Open(model)).value();
  PackedLoad load(*gguf, *backend);
  const auto loaded = LoadModel(*gguf, *backend);
  ASSERT_TRUE(loaded.ok());
  fs::remove(model);  // before the writer begins
  const auto panels = load.Finish();
  FlushPackedWeights();
  EXPECT_FALSE(fs::exists(file));
  EXPECT_THAT(TakeDone(), IsEmpty());
  EXPECT_THAT(TakeProblems(), IsEmpty());
}

TEST_F(PackedWeightsTest, OneIsReadWhateverUmaskSays) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const mode_t before = umask(002);
  (void)Compute(model);
  umask(before);
  EXPECT_EQ(fs::status(FileOf(model)).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  (void)Compute(model);
  EXPECT_EQ(TakeDone().size(), 1u);
  EXPECT_THAT(TakeProblems(), IsEmpty());
}

// The program's handler for SIGBUS is for good, so that a child runs it.
TEST_F(PackedWeightsTest, AFileThatIsCutBeforeItsCheckIsDamaged) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  const std::string file = FileOf(model);
  const auto compute = [&] {
    ReportCutFiles();
    const auto engine = Open(model);
    fs::resize_file(file, std::uint64_t{4} << 20);
    const bool is_same = LogitsOf(*engine) == expected;
    const bool is_told = TakeProblems().size() == 1;
    std::_Exit(is_same && is_told && !fs::exists(file) ? 0 : 2);
  };
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(0), "");
}

// Another process may have made the file that is there now.
TEST_F(PackedWeightsTest, OnlyTheFileThatWasJudgedIsRemoved) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  const std::string file = FileOf(model);
  const std::string whole = root_ + "/whole";
  fs::copy_file(file, whole);
  Flip(file, std::uint64_t{2} << 20);
  const auto engine = Open(model);
  fs::rename(whole, file);
  EXPECT_EQ(LogitsOf(*engine), expected);
  EXPECT_EQ(TakeProblems().size(), 1u);
  EXPECT_TRUE(fs::exists(file));
}

// Who can write the folder can replace what is in it.
TEST_F(PackedWeightsTest, AFolderThatOthersCanWriteIsNotRead) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  Flip(FileOf(model), 40);  // whoever reads it removes it
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("other users can write to the directory")));
  EXPECT_TRUE(fs::exists(FileOf(model)));
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
