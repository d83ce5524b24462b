// Checks which files of packed weights a folder keeps, and where it keeps none.
#include "engine/packed/packed_weights_testing.h"

namespace kvcache::packed_weights_testing {
namespace {

using PackedFolderTest = PackedWeightsTest;

TEST_F(PackedFolderTest, AFolderThatCannotBeMadeStopsNothing) {
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

TEST_F(PackedFolderTest, AModelThatGoesAtOnceLeavesNothingBehind) {
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

TEST_F(PackedFolderTest, TheOldestFilesGoFirst) {
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
TEST_F(PackedFolderTest, ModelsInTurnsDoNotRemoveEachOthersFiles) {
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
TEST_F(PackedFolderTest, MappedFilesStay) {
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

TEST_F(PackedFolderTest, FilesWhoseModelIsGoneAreRemoved) {
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

TEST_F(PackedFolderTest, AModelThatWasRemovedLeavesNoFile) {
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

// Who can write the folder can replace what is in it.
TEST_F(PackedFolderTest, AFolderThatOthersCanWriteIsNotRead) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  const std::vector<float> expected = Compute(model);
  Flip(FileOf(model), 40);  // whoever reads it removes it
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(Compute(model), expected);
  EXPECT_THAT(TakeProblems(), ElementsAre(HasSubstr("other users can write to the directory")));
  EXPECT_TRUE(fs::exists(FileOf(model)));
}

TEST_F(PackedFolderTest, SmallModelsAreNotKept) {
  const std::string model = Write("model.gguf", DType::kQ8_0);
  PackedWeightsOptions options;
  options.directory = folder_;
  kvcache::UsePackedWeights(std::move(options));
  (void)Compute(model);
  EXPECT_FALSE(fs::exists(folder_));
}

// A size limit stands in for a full disk.
TEST_F(PackedFolderTest, AFullDiskStopsNothing) {
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

}  // namespace
}  // namespace kvcache::packed_weights_testing
