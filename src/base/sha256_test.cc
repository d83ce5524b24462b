#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace kvcache::sha256_test {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The examples of FIPS 180-2.
TEST(Sha256Test, KnownHashes) {
  EXPECT_EQ(HexText(Sha256Of(BytesOf("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexText(Sha256Of({})),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256Test, PartsMakeTheWhole) {
  Sha256 hash;
  hash.Add(BytesOf("a"));
  hash.Add({});
  hash.Add(BytesOf("bc"));
  EXPECT_EQ(hash.Finish(), Sha256Of(BytesOf("abc")));
}

}  // namespace
}  // namespace kvcache::sha256_test
