#include "gguf/gguf_writer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "gguf/gguf.h"

namespace kvcache::gguf_writer_test {
namespace {

class GgufWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "gguf_writer_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ + "/m.gguf";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
  std::string path_;
};

std::vector<std::byte> Pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

TEST_F(GgufWriterTest, ReadsBackWhatWasWritten) {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  header.SetUint32("llama.block_count", 2);
  const std::size_t a = header.AddTensor("a", GgmlType::kF16, {5, 3});
  const std::size_t b = header.AddTensor("b", GgmlType::kQ8_0, {32, 100, 2});
  auto writer = GgufWriter::Create(path_, std::move(header));
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const auto a_bytes = Pattern(30, 1);
  const auto b_bytes = Pattern(6800, 2);
  // From two threads, in pieces, the later tensor first.
  std::thread other([&] {
    for (std::size_t at = 0; at < b_bytes.size(); at += 100) {
      EXPECT_TRUE((*writer)->Write(b, at, std::span(b_bytes).subspan(at, 100)).ok());
    }
  });
  EXPECT_TRUE((*writer)->Write(a, 0, a_bytes).ok());
  other.join();
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_TRUE((*writer)->Finish().ok());

  const auto file = GgufFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*(*file)->GetUint("llama.block_count"), 2u);
  EXPECT_EQ((*file)->FindTensor("a")->rank, 2);
  EXPECT_TRUE(std::ranges::equal((*file)->FindTensor("a")->bytes, a_bytes));
  EXPECT_TRUE(std::ranges::equal((*file)->FindTensor("b")->bytes, b_bytes));
  EXPECT_EQ((*file)->FindTensor("b")->offset % 32, 0u);
}

TEST_F(GgufWriterTest, CopiesEntriesOfAnotherFile) {
  GgufHeader first;
  first.SetStrings("tokens", std::vector<std::string>{"a", "bc"});
  first.SetFloat32("f", 1.5f);
  first.SetString("s", "text");
  const std::string bytes = *first.Serialize();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "first");
  ASSERT_TRUE(file.ok());
  GgufHeader second;
  for (const GgufEntry& entry : (*file)->entries()) second.SetEntry(entry);
  EXPECT_EQ(*second.Serialize(), bytes);
}

TEST_F(GgufWriterTest, RejectsHeadersThatCannotBeRead) {
  const struct {
    std::string_view message;
    void (*fill)(GgufHeader&);
  } kCases[] = {
      {"key 'k' is set twice", [](GgufHeader& h) { h.SetBool("k", true), h.SetString("k", "x"); }},
      {"a key is empty; must have a name", [](GgufHeader& h) { h.SetUint32("", 1); }},
      {"a tensor's name is empty; must have a name",
       [](GgufHeader& h) { h.AddTensor("", GgmlType::kF32, {1}); }},
      {"tensor 't' is added twice",
       [](GgufHeader& h) {
         h.AddTensor("t", GgmlType::kF32, {1});
         h.AddTensor("t", GgmlType::kF32, {1});
       }},
      {"tensor 't' has dims {16, 2} and type q8_0; must have a known type, 1 to 4 "
       "positive dims and whole blocks",
       [](GgufHeader& h) {
         h.AddTensor("t", GgmlType::kQ8_0, {16, 2});
       }},
      {"tensor 't' has dims {4, 0} and type f32; must have a known type, 1 to 4 "
       "positive dims and whole blocks",
       [](GgufHeader& h) {
         h.AddTensor("t", GgmlType::kF32, {4, 0});
       }},
      {"tensor 't' has dims {4} and type unknown; must have a known type, 1 to 4 "
       "positive dims and whole blocks",
       [](GgufHeader& h) { h.AddTensor("t", static_cast<GgmlType>(5), {4}); }},
      {"tensor 't' has dims {1, 1, 1, 1, 1} and type f32; must have a known type, 1 to 4 "
       "positive dims and whole blocks",
       [](GgufHeader& h) {
         h.AddTensor("t", GgmlType::kF32, {1, 1, 1, 1, 1});
       }},
      {"tensor 't' has dims {4611686018427387904, 4} and type f32; must have a known type, 1 to 4 "
       "positive dims and whole blocks",
       [](GgufHeader& h) {
         h.AddTensor("t", GgmlType::kF32, {1ll << 62, 4});
       }},
  };
  for (const auto& c : kCases) {
    GgufHeader header;
    c.fill(header);
    const Status status = header.Serialize().status();
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(GgufWriter::Create(path_, std::move(header)).status().message(),
              path_ + ": " + std::string(c.message));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(GgufWriterTest, FinishRequiresEveryByte) {
  GgufHeader header;
  header.AddTensor("t", GgmlType::kF32, {4});
  auto writer = GgufWriter::Create(path_, std::move(header));
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->Write(0, 0, Pattern(12, 0)).ok());
  EXPECT_EQ((*writer)->Finish().message(),
            path_ + ": tensor 't': 12 bytes were written; must be all 16");
  EXPECT_EQ((*writer)->Write(0, 12, Pattern(5, 0)).message(),
            path_ + ": tensor 't': 5 bytes at offset 12 do not fit; it has 16 bytes");
  EXPECT_EQ((*writer)->Write(1, 0, Pattern(1, 0)).message(),
            path_ + ": the tensor index is 1; the file has 1 tensors");
  EXPECT_TRUE((*writer)->Write(0, 12, Pattern(4, 0)).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
}

}  // namespace
}  // namespace kvcache::gguf_writer_test
