// The envelope of stored objects: the documented example, and every damaged bit.
#include "store/object_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace kvcache::store::object_format_test {
namespace {

std::vector<std::byte> BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

ObjectId ExampleId() {
  ObjectId id;
  id.fingerprint.bytes.fill(std::byte{0x11});
  id.key.bytes.fill(std::byte{0x22});
  return id;
}

std::vector<std::byte> ObjectOf(const ObjectId& id, std::span<const std::byte> payload) {
  const Envelope envelope = MakeEnvelope(id, payload);
  std::vector<std::byte> object(envelope.size() + payload.size());
  std::copy(payload.begin(), payload.end(),
            std::copy(envelope.begin(), envelope.end(), object.begin()));
  return object;
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char digits[3];
    (void)std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
    text += digits;
  }
  return text;
}

// The example of docs/formats/store-object.md.
TEST(ObjectFormat, HasTheDocumentedBytes) {
  const std::vector<std::byte> object = ObjectOf(ExampleId(), BytesOf("hello"));
  const std::span<const std::byte> bytes(object);
  EXPECT_EQ(Hex(bytes.first(16)), "6b766f626a3030310500000000000000");
  EXPECT_EQ(Hex(bytes.subspan(16, 32)), Hex(ExampleId().fingerprint.bytes));
  EXPECT_EQ(Hex(bytes.subspan(48, 32)), Hex(ExampleId().key.bytes));
  EXPECT_EQ(Hex(bytes.subspan(80, 16)), "3d555639b96c1510d00d37117616023d");
  EXPECT_EQ(Hex(bytes.subspan(96, 24)), std::string(48, '0'));
  EXPECT_EQ(Hex(bytes.subspan(120, 8)), "a936f8f62c7de581");
  EXPECT_EQ(Hex(bytes.subspan(128)), "68656c6c6f");
}

TEST(ObjectFormat, ReturnsThePayload) {
  for (const std::string_view text : {"", "a", "some longer text of several words"}) {
    const std::vector<std::byte> object = ObjectOf(ExampleId(), BytesOf(text));
    const auto payload = OpenEnvelope(ExampleId(), object);
    ASSERT_TRUE(payload.ok()) << payload.status().message();
    EXPECT_EQ(Hex(*payload), Hex(BytesOf(text)));
  }
}

TEST(ObjectFormat, FindsEveryFlippedBitAndEveryCut) {
  const std::vector<std::byte> object = ObjectOf(ExampleId(), BytesOf("some payload"));
  for (std::size_t bit = 0; bit < object.size() * 8; ++bit) {
    std::vector<std::byte> damaged = object;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(OpenEnvelope(ExampleId(), damaged).status().code(), StatusCode::kCorrupt) << bit;
  }
  for (std::size_t size = 0; size < object.size(); ++size) {
    EXPECT_EQ(OpenEnvelope(ExampleId(), std::span(object).first(size)).status().code(),
              StatusCode::kCorrupt)
        << size;
  }
  std::vector<std::byte> longer = object;
  longer.push_back(std::byte{0});
  EXPECT_EQ(OpenEnvelope(ExampleId(), longer).status().code(), StatusCode::kCorrupt);
}

TEST(ObjectFormat, RefusesAnotherObject) {
  const std::vector<std::byte> object = ObjectOf(ExampleId(), BytesOf("x"));
  ObjectId other = ExampleId();
  other.key.bytes[31] = std::byte{0};
  EXPECT_EQ(OpenEnvelope(other, object).status().message(),
            "the object has another key than it is stored under");
  other = ExampleId();
  other.fingerprint.bytes[0] = std::byte{0};
  EXPECT_FALSE(OpenEnvelope(other, object).ok());
}

}  // namespace
}  // namespace kvcache::store::object_format_test
