#include "convert/quantize_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "make_model/make_model.h"

namespace kvcache::quantize_model_test {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  int layers = 2;
  int hidden = 128;
  int ffn = 256;
  make_model::Output output = make_model::Output::kUntied;
};

std::string Make(const std::string& name, const std::string& type, const Sizes& sizes = {}) {
  std::string path = ::testing::TempDir() + name;
  const auto scheme = make_model::ParseWeightScheme(type);
  EXPECT_TRUE(scheme.ok()) << scheme.status().message();
  make_model::Request request;
  request.type = scheme->type;
  request.mix = scheme->mix;
  request.shape.layers = sizes.layers;
  request.shape.hidden_size = sizes.hidden;
  request.shape.ffn = sizes.ffn;
  request.shape.output = sizes.output;
  const Status status = make_model::MakeModel(request, path);
  EXPECT_TRUE(status.ok()) << status.message();
  return path;
}

// The random weights do not depend on their type: a model that is made in q8_0 has the bytes of one
// that is made in f32 and converted.
void ExpectEqualsMade(const std::string& type, const Sizes& sizes) {
  SCOPED_TRACE(type + ", rows of " + std::to_string(sizes.hidden));
  const WeightScheme scheme = ParseWeightScheme(type).value();
  const auto plain = GgufFile::Open(Make("convert_f32.gguf", "f32", sizes));
  const std::string path = ::testing::TempDir() + "convert_out.gguf";
  const Status status = QuantizeModel(**plain, scheme, path);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto converted = GgufFile::Open(path);
  const auto made = GgufFile::Open(Make("convert_made.gguf", type, sizes));
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

TEST(QuantizeModelTest, EqualsAModelMadeInThatType) {
  for (const char* name : {"q8_0", "q4_0", "f16", "bf16", "iq4_nl", "mxfp4"})
    ExpectEqualsMade(name, {});
}

// Of 16 layers some are in the first and last eighth, and some between.
TEST(QuantizeModelTest, MixturesEqualModelsMadeInThem) {
  using make_model::Output;
  for (const char* name : {"q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q4_k_m", "q5_k_m"}) {
    ExpectEqualsMade(name, {16, 256, 512, Output::kUntied});
    ExpectEqualsMade(name, {16, 256, 512, Output::kTied});
    ExpectEqualsMade(name, {3, 128, 192, Output::kUntied});  // no whole super-blocks
  }
}

TEST(QuantizeModelTest, RefusesWhatIsQuantizedAlready) {
  const auto made = GgufFile::Open(Make("convert_q8.gguf", "q8_0"));
  const Status status = QuantizeModel(**made, ParseWeightScheme("q4_0").value(),
                                      ::testing::TempDir() + "convert_no.gguf");
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("is q8_0 already"));
}

TEST(QuantizeModelTest, NamesOfTypes) {
  EXPECT_EQ(ParseWeightScheme("Q8_0")->type, DType::kQ8_0);
  EXPECT_THAT(ParseWeightScheme("q3").status().message(), HasSubstr("q8_0"));
}

}  // namespace
}  // namespace kvcache::quantize_model_test
