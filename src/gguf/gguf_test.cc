#include "gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace kvcache::gguf_test {
namespace {

using ::testing::ElementsAre;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Returns a file with a value of every type and three tensors, one of an unsupported type.
std::string SampleFile() {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  header.SetBool("yes", true);
  header.SetUint32("u32", 7);
  header.SetInt32("i32", -3);
  header.SetUint64("u64", std::numeric_limits<std::uint64_t>::max());
  header.SetFloat32("f32", 0.5f);
  header.SetStrings("strings", std::vector<std::string>{"", "a", "\xff\0z", "longer text"});
  header.SetFloats("floats", std::vector<float>{1.5f, -2.0f});
  header.SetInts("ints", std::vector<std::int32_t>{1, -2, 3});
  header.SetBools("bools", std::array{true, false, true});
  header.SetStrings("none", {});
  header.AddTensor("f", GgmlType::kF32, {3, 2});
  header.AddTensor("q", GgmlType::kQ8_0, {64});
  header.AddTensor("k", static_cast<GgmlType>(41), {256, 1, 2});
  auto file = header.Serialize();
  EXPECT_TRUE(file.ok()) << file.status().message();
  std::string data(header.data_bytes(), '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  return *file + data;
}

class GgufTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // An allocation without slack, so that the address sanitizer detects a read past the end.
    bytes_ = SampleFile();
    auto file = GgufFile::Parse(Bytes(bytes_), "m.gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(*file);
  }
  std::string bytes_;
  std::unique_ptr<GgufFile> file_;
};

TEST(GgufHeaderTest, BytesAreAnArrayOfSmallIntegers) {
  GgufHeader header;
  header.SetBytes("bytes", std::as_bytes(std::span(std::string_view("\x01\xc8", 2))));
  const std::string bytes = *header.Serialize();
  const auto file = GgufFile::Parse(Bytes(bytes), "m.gguf").value();
  EXPECT_EQ(file->Find("bytes")->element, GgufType::kUint8);
  const GgufInts values = *file->GetInts("bytes");
  EXPECT_EQ(std::vector<std::int64_t>(values.begin(), values.end()),
            (std::vector<std::int64_t>{1, 200}));
}

TEST_F(GgufTest, DescribesTheFile) {
  EXPECT_EQ(file_->path(), "m.gguf");
  EXPECT_EQ(file_->size_bytes(), bytes_.size());
  EXPECT_EQ(file_->version(), 3u);
  EXPECT_EQ(file_->alignment(), 32u);
  EXPECT_EQ(file_->entries().size(), 11u);
  EXPECT_EQ(file_->entries()[1].key, "yes");
  EXPECT_EQ(file_->tensors().size(), 3u);
}

TEST_F(GgufTest, GetsScalars) {
  EXPECT_EQ(*file_->GetString("general.architecture"), "llama");
  EXPECT_EQ(*file_->GetBool("yes"), true);
  EXPECT_EQ(*file_->GetUint("u32"), 7u);
  EXPECT_EQ(*file_->GetInt("u32"), 7);
  EXPECT_EQ(*file_->GetInt("i32"), -3);
  EXPECT_EQ(*file_->GetUint("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(*file_->GetFloat("f32"), 0.5);
}

TEST_F(GgufTest, GetsArraysWithoutCopies) {
  const GgufStrings strings = *file_->GetStrings("strings");
  EXPECT_EQ(strings.size(), 4u);
  EXPECT_THAT(std::vector<std::string_view>(strings.begin(), strings.end()),
              ElementsAre("", "a", std::string_view("\xff\0z", 1), "longer text"));
  const GgufFloats floats = *file_->GetFloats("floats");
  EXPECT_THAT(std::vector<float>(floats.begin(), floats.end()), ElementsAre(1.5f, -2.0f));
  const GgufInts ints = *file_->GetInts("ints");
  EXPECT_THAT(std::vector<std::int64_t>(ints.begin(), ints.end()), ElementsAre(1, -2, 3));
  EXPECT_EQ(ints[1], -2);
  const GgufBools bools = *file_->GetBools("bools");
  EXPECT_THAT(std::vector<bool>(bools.begin(), bools.end()), ElementsAre(true, false, true));
  EXPECT_TRUE(file_->GetStrings("none")->empty());
  EXPECT_EQ(file_->GetStrings("none")->begin(), file_->GetStrings("none")->end());
}

TEST_F(GgufTest, ErrorsNameKeyExpectedAndFound) {
  const struct {
    Status status;
    StatusCode code;
    std::string_view message;
  } kCases[] = {
      {file_->GetString("absent").status(), StatusCode::kNotFound,
       "metadata 'absent' is missing, expected a string"},
      {file_->GetString("u32").status(), StatusCode::kInvalidArgument,
       "metadata 'u32': expected a string, found uint32 7"},
      {file_->GetUint("i32").status(), StatusCode::kInvalidArgument,
       "metadata 'i32': expected an unsigned integer, found int32 -3"},
      {file_->GetInt("u64").status(), StatusCode::kInvalidArgument,
       "metadata 'u64': expected an integer below 2^63, found uint64 "
       "18446744073709551615"},
      {file_->GetInt("f32").status(), StatusCode::kInvalidArgument,
       "metadata 'f32': expected an integer, found float32"},
      {file_->GetUint("ints").status(), StatusCode::kInvalidArgument,
       "metadata 'ints': expected an unsigned integer, found array of 3 int32"},
      {file_->GetUint("yes").status(), StatusCode::kInvalidArgument,
       "metadata 'yes': expected an unsigned integer, found bool"},
      {file_->GetFloat("u32").status(), StatusCode::kInvalidArgument,
       "metadata 'u32': expected a float, found uint32 7"},
      {file_->GetBool("u32").status(), StatusCode::kInvalidArgument,
       "metadata 'u32': expected a bool, found uint32 7"},
      {file_->GetStrings("floats").status(), StatusCode::kInvalidArgument,
       "metadata 'floats': expected an array of strings, found array of 2 float32"},
      {file_->GetInts("u32").status(), StatusCode::kInvalidArgument,
       "metadata 'u32': expected an array of integers below 2^63, found uint32 7"},
      {file_->GetFloats("ints").status(), StatusCode::kInvalidArgument,
       "metadata 'ints': expected an array of floats, found array of 3 int32"},
      {file_->GetBools("absent").status(), StatusCode::kNotFound,
       "metadata 'absent' is missing, expected an array of bools"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(c.status.message(), c.message);
    EXPECT_EQ(c.status.code(), c.code) << c.message;
  }
}

TEST_F(GgufTest, DefaultsApplyOnlyToMissingKeys) {
  EXPECT_EQ(*file_->GetUintOr("absent", 5), 5u);
  EXPECT_EQ(*file_->GetUintOr("u32", 5), 7u);
  EXPECT_EQ(*file_->GetStringOr("absent", "x"), "x");
  EXPECT_EQ(*file_->GetIntOr("absent", -1), -1);
  EXPECT_EQ(*file_->GetFloatOr("absent", 1.25), 1.25);
  EXPECT_EQ(*file_->GetBoolOr("absent", true), true);
  EXPECT_EQ(file_->GetUintOr("f32", 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file_->GetStringOr("u32", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file_->GetIntOr("f32", 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file_->GetFloatOr("u32", 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file_->GetBoolOr("u32", true).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(GgufTest, ViewsTensorsInPlace) {
  const GgufTensor* tensor = file_->FindTensor("q");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->rank, 1);
  EXPECT_EQ(tensor->type->name, "q8_0");
  EXPECT_EQ(tensor->offset, file_->parts().front().data_offset + 32);
  EXPECT_EQ(tensor->bytes.size(), 68u);
  const Result<TensorView> view = file_->Tensor("f");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->dtype, DType::kF32);
  EXPECT_THAT(view->dims, ElementsAre(3, 2, 1, 1));
  EXPECT_THAT(view->stride_bytes, ElementsAre(4, 12, 24, 24));
  EXPECT_EQ(reinterpret_cast<const char*>(view->data),
            bytes_.data() + file_->parts().front().data_offset);
}

TEST_F(GgufTest, NamesUnsupportedTypes) {
  const GgufTensor* tensor = file_->FindTensor("k");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->bytes.size(), 72u);
  EXPECT_EQ(tensor->elements(), 512);
  const Status status = file_->Tensor("k").status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "tensor 'k' has type q1_0, which is not supported");
}

TEST_F(GgufTest, MissingTensorsAreNamed) {
  EXPECT_EQ(file_->FindTensor("zz"), nullptr);
  const Status status = file_->Tensor("zz").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "tensor 'zz' is missing; the file has 3 tensors");
}

TEST(GgmlType, EveryDTypeHasANumber) {
  for (const DType dtype :
       {DType::kF32,   DType::kF16,    DType::kBF16,    DType::kQ4_0,  DType::kQ4_1,
        DType::kQ5_0,  DType::kQ5_1,   DType::kQ8_0,    DType::kQ4_K,  DType::kQ5_K,
        DType::kQ6_K,  DType::kMXFP4,  DType::kI8,      DType::kI32,   DType::kQ2_K,
        DType::kQ3_K,  DType::kIQ4_NL, DType::kIQ4_XS,  DType::kIQ3_S, DType::kIQ3_XXS,
        DType::kIQ2_S, DType::kIQ2_XS, DType::kIQ2_XXS, DType::kIQ1_S, DType::kIQ1_M,
        DType::kTQ1_0, DType::kTQ2_0,  DType::kNVFP4}) {
    const GgmlTypeInfo* info = FindGgmlType(GgmlTypeOf(dtype));
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->name, InfoOf(dtype).name);
  }
  EXPECT_EQ(FindGgmlType(static_cast<GgmlType>(4)), nullptr);
  EXPECT_EQ(FindGgmlType(static_cast<GgmlType>(~0u)), nullptr);
}

}  // namespace
}  // namespace kvcache::gguf_test
