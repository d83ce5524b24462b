#include "server/request/fields.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::server::fields_test {
namespace {

TEST(FieldsTest, IntegersMayHaveAPointOrAnExponent) {
  const struct {
    const char* text;
    std::int64_t value;
  } cases[] = {{"40", 40},
               {"40.0", 40},
               {"4e1", 40},
               {"-2.0", -2},
               {"-0.0", 0},
               {"9223372036854775807", INT64_MAX},
               {"1e18", 1'000'000'000'000'000'000}};
  for (const auto& [text, value] : cases) {
    EXPECT_EQ(IntegerOf(Json::parse(text)), value) << text;
    const Json object = {{"x", Json::parse(text)}};
    Fields fields(object);
    EXPECT_EQ(fields.Integer("x", 7, INT64_MIN, INT64_MAX), value) << text;
    EXPECT_TRUE(fields.ok()) << text;
  }
}

TEST(FieldsTest, AWrongTypeIsNeverAnInteger) {
  for (const char* const text :
       {"1.5", "\"40\"", "true", "[]", "{}", "1e99", "-1e99", "9223372036854775808", "1e19"}) {
    EXPECT_EQ(IntegerOf(Json::parse(text)), std::nullopt) << text;
    const Json object = {{"x", Json::parse(text)}};
    Fields fields(object);
    EXPECT_EQ(fields.Integer("x", 7, INT64_MIN, INT64_MAX), 7) << text;
    EXPECT_EQ(fields.error_field(), "x") << text;
  }
}

TEST(FieldsTest, RangesHoldForAllSpellings) {
  for (const char* const text : {"41", "41.0", "-1", "1e99", "18446744073709551615"}) {
    const Json object = {{"x", Json::parse(text)}};
    Fields fields(object);
    (void)fields.Integer("x", 7, 0, 40);
    EXPECT_EQ(fields.error().message(), "'x' must be from 0 to 40") << text;
  }
}

TEST(FieldsTest, ValuesThatChangeNothingAreTaken) {
  const Json object = {{"a", 1.0}, {"b", 0}, {"c", nullptr}, {"d", Json::array()}, {"e", 0.5}};
  Fields fields(object);
  for (const char* const name : {"a", "b", "c", "d", "f"}) fields.RefuseUnless(name, {0, 1});
  EXPECT_TRUE(fields.ok()) << fields.error().message();
  fields.RefuseUnless("e", {0, 1});
  EXPECT_EQ(fields.error_field(), "e");
}

TEST(FieldsTest, TheFirstErrorOfAnInnerObjectIsTaken) {
  const Json object = {{"a", 5}};
  Fields outer(object);
  Fields inner(object, "inner.");
  outer.Adopt(inner);
  EXPECT_TRUE(outer.ok());
  (void)inner.Text("a");
  outer.Adopt(inner);
  EXPECT_EQ(outer.error_field(), "inner.a");
  outer.Fail("b", "is wrong");
  EXPECT_EQ(outer.error_field(), "inner.a");
}

}  // namespace
}  // namespace kvcache::server::fields_test
