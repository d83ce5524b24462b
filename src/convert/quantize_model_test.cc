#include "convert/quantize_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "make_model/make_model.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

std::string Make(const std::string& name, DType type) {
  std::string path = testing::TempDir() + name;
  make_model::Request request;
  request.type = type;
  const Status status = make_model::MakeModel(request, path);
  EXPECT_TRUE(status.ok()) << status.message();
  return path;
}

// The random weights do not depend on their type: a model that is made in q8_0 has the bytes of one
// that is made in f32 and converted.
TEST(QuantizeModelTest, EqualsAModelMadeInThatType) {
  for (const char* name : {"q8_0", "q4_0", "f16", "bf16"}) {
    const WeightScheme scheme = ParseWeightScheme(name).value();
    const DType type = scheme.type;
    const auto plain = GgufFile::Open(Make("convert_f32.gguf", DType::kF32));
    const std::string path = testing::TempDir() + "convert_out.gguf";
    const Status status = QuantizeModel(**plain, scheme, path);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto converted = GgufFile::Open(path);
    const auto made = GgufFile::Open(Make("convert_made.gguf", type));
    ASSERT_EQ((*converted)->tensors().size(), (*made)->tensors().size());
    for (const GgufTensor& tensor : (*made)->tensors()) {
      const GgufTensor* other = (*converted)->FindTensor(tensor.name);
      ASSERT_NE(other, nullptr) << tensor.name;
      EXPECT_EQ(other->type, tensor.type) << tensor.name;
      ASSERT_EQ(other->bytes.size(), tensor.bytes.size()) << tensor.name;
      EXPECT_EQ(std::memcmp(other->bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0)
          << tensor.name;
    }
  }
}

TEST(QuantizeModelTest, RefusesWhatIsQuantizedAlready) {
  const auto made = GgufFile::Open(Make("convert_q8.gguf", DType::kQ8_0));
  const Status status = QuantizeModel(**made, ParseWeightScheme("q4_0").value(),
                                      testing::TempDir() + "convert_no.gguf");
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("is q8_0 already"));
}

TEST(QuantizeModelTest, NamesOfTypes) {
  EXPECT_EQ(ParseWeightScheme("Q8_0")->type, DType::kQ8_0);
  EXPECT_THAT(ParseWeightScheme("q3").status().message(), HasSubstr("q8_0"));
}

}  // namespace
}  // namespace kvcache
