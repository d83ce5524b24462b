// A model has the same bits with packed weights, whatever happens to their files.
#include "engine/packed/packed_weights_testing.h"

namespace kvcache::packed_weights_testing {
namespace {

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
}  // namespace kvcache::packed_weights_testing
