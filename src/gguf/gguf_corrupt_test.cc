// Damaged files: each kind of damage has its own error, with the offset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf.h"

namespace kvcache::gguf_corrupt_test {
namespace {

using ::testing::HasSubstr;

// Writes a GGUF file field by field, without checks.
class Raw {
 public:
  template <typename T>
  Raw& Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Raw& U32(std::uint32_t value) { return Put(value); }
  Raw& U64(std::uint64_t value) { return Put(value); }
  Raw& Text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  Raw& String(std::string_view text) { return U64(text.size()).Text(text); }
  Raw& Head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return Text("GGUF").U32(version).U64(tensors).U64(keys);
  }
  Raw& Key(std::string_view key, GgufType type) {
    return String(key).U32(static_cast<std::uint32_t>(type));
  }
  Raw& Tensor(std::string_view name, const std::vector<std::uint64_t>& dims, GgmlType type,
              std::uint64_t offset) {
    String(name).U32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) U64(dim);
    return U32(static_cast<std::uint32_t>(type)).U64(offset);
  }
  Raw& Align(std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Raw& Zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Parses a copy that ends at the end of an allocation, so that sanitizers detect an overrun.
Status Parse(const std::string& text) {
  const auto text_bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> bytes(text_bytes.begin(), text_bytes.end());
  return GgufFile::Parse(bytes, "m.gguf").status();
}

struct Case {
  std::string_view name;
  Raw file;
  StatusCode code;
  std::string_view message;  // after "m.gguf: "
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Status status = Parse(c.file.bytes());
    EXPECT_EQ(status.message(), StrCat("m.gguf: ", c.message)) << c.name;
    EXPECT_EQ(status.code(), c.code) << c.name;
  }
}

TEST(GgufCorrupt, Header) {
  Check({
      {"empty", Raw(), StatusCode::kCorrupt,
       "not a GGUF file: it has 0 bytes; must begin with 'GGUF'"},
      {"short", Raw().Text("GGU"), StatusCode::kCorrupt,
       "not a GGUF file: it has 3 bytes; must begin with 'GGUF'"},
      {"magic", Raw().Text("ggml\x01").Zeros(40), StatusCode::kCorrupt,
       "not a GGUF file: it begins with 'ggml'; must begin with 'GGUF'"},
      {"version 1", Raw().Head(0, 0, 1), StatusCode::kUnsupported,
       "the GGUF version is 1; versions 2 and 3 are supported"},
      {"version 4", Raw().Head(0, 0, 4), StatusCode::kUnsupported,
       "the GGUF version is 4; versions 2 and 3 are supported"},
      {"version 0", Raw().Head(0, 0, 0), StatusCode::kUnsupported,
       "the GGUF version is 0; versions 2 and 3 are supported"},
      {"big-endian", Raw().Head(0, 0, 0x03000000), StatusCode::kUnsupported,
       "the GGUF file is big-endian; only little-endian is supported"},
      {"no counts", Raw().Text("GGUF").U32(3).U64(0), StatusCode::kCorrupt,
       "offset 16: the number of keys needs 8 bytes; 0 are left"},
      {"too many keys", Raw().Head(0, 1ull << 60), StatusCode::kCorrupt,
       "offset 24: 1152921504606846976 keys do not fit; each needs at least 14 bytes, and 0 are "
       "left"},
      {"too many tensors", Raw().Head(~0ull, 0).Zeros(50), StatusCode::kCorrupt,
       "offset 24: 18446744073709551615 tensors do not fit; each needs at least 25 bytes, and 50 "
       "are left"},
  });
}

// A large file does not make a large count valid: counts have a bound of their own.
TEST(GgufCorrupt, CountsAreBounded) {
  constexpr std::uint64_t kTooMany = (1 << 20) + 1;
  Check({
      {"keys", Raw().Head(0, kTooMany).Zeros(14 * kTooMany), StatusCode::kUnsupported,
       "the file has 1048577 keys; at most 1048576 are supported"},
      {"tensors", Raw().Head(kTooMany, 0).Zeros(25 * kTooMany), StatusCode::kUnsupported,
       "the file has 1048577 tensors; at most 1048576 are supported"},
  });
}

TEST(GgufCorrupt, Keys) {
  const auto one_key = [] { return Raw().Head(0, 1); };
  Check({
      {"name too long", one_key().U64(1ull << 40).Zeros(8), StatusCode::kCorrupt,
       "key 1 of 1: offset 32: its name needs 1099511627776 bytes; 8 are left"},
      {"name length overflows", one_key().U64(~0ull).Zeros(8), StatusCode::kCorrupt,
       "key 1 of 1: offset 32: its name needs 18446744073709551615 bytes; 8 are left"},
      {"no name", one_key().String("").U32(4).U32(1), StatusCode::kCorrupt,
       "key 1 of 1: offset 24: its name has 0 bytes; must have 1 to 65535"},
      {"huge name", one_key().String(std::string(65536, 'k')).U32(4).U32(1), StatusCode::kCorrupt,
       "key 1 of 1: offset 24: its name has 65536 bytes; must have 1 to 65535"},
      {"unknown type", one_key().String("k").U32(13).U64(0), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 33: the value type is 13; must be 0 to 12"},
      {"value cut", one_key().Key("k", GgufType::kUint64).U32(1), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 37: 1 values of type uint64 do not fit; each needs at least 8 "
       "bytes, and 4 are left"},
      {"bool of two", one_key().Key("k", GgufType::kBool).Text("\x02"), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 37: the bool is 2; must be 0 or 1"},
      {"string cut", one_key().Key("k", GgufType::kString).U64(9).Text("abc"), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 45: a string needs 9 bytes; 3 are left"},
      {"unprintable key", one_key().String("a\nb\xff").U32(99).U64(0), StatusCode::kCorrupt,
       "key 1 of 1: 'a\\x0ab\\xff': offset 36: the value type is 99; must be 0 to 12"},
      {"twice",
       Raw()
           .Head(0, 3)
           .Key("k", GgufType::kUint8)
           .Text("x")
           .Key("j", GgufType::kUint8)
           .Text("x")
           .Key("k", GgufType::kUint8)
           .Text("y"),
       StatusCode::kCorrupt, "key 'k' occurs twice, with values at offsets 37 and 65"},
  });
}

TEST(GgufCorrupt, Arrays) {
  const auto array = [](std::uint32_t element, std::uint64_t count) {
    return Raw().Head(0, 1).Key("k", GgufType::kArray).U32(element).U64(count);
  };
  const auto number = [](GgufType type) { return static_cast<std::uint32_t>(type); };
  Check({
      {"unknown element", array(77, 1), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 37: the value type is 77; must be 0 to 12"},
      {"nested", array(number(GgufType::kArray), 1).U32(4).U64(0), StatusCode::kUnsupported,
       "key 1 of 1: 'k': offset 37: arrays of arrays are not supported"},
      {"count overflows", array(number(GgufType::kUint64), 1ull << 61).Zeros(64),
       StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 49: 2305843009213693952 values of type uint64 do not fit; each "
       "needs at least 8 bytes, and 64 are left"},
      {"too many strings", array(number(GgufType::kString), 5).Zeros(32), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 49: 5 values of type string do not fit; each needs at least 8 "
       "bytes, and 32 are left"},
      {"a string too long", array(number(GgufType::kString), 2).String("ab").U64(~0ull).Zeros(3),
       StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 67: a string needs 18446744073709551615 bytes; 3 are left"},
      {"bool of seven", array(number(GgufType::kBool), 3).Text(std::string_view("\0\1\7", 3)),
       StatusCode::kCorrupt, "key 1 of 1: 'k': offset 51: the bool is 7; must be 0 or 1"},
      {"no length", Raw().Head(0, 1).Key("k", GgufType::kArray).U32(4).U32(0), StatusCode::kCorrupt,
       "key 1 of 1: 'k': offset 41: its length needs 8 bytes; 4 are left"},
  });
}

TEST(GgufCorrupt, Alignment) {
  const auto aligned = [](std::uint32_t alignment) {
    return Raw().Head(0, 1).Key("general.alignment", GgufType::kUint32).U32(alignment);
  };
  for (const std::uint32_t bad : {0u, 1u, 4u, 24u, 33u, 0x80000000u, ~0u}) {
    EXPECT_EQ(Parse(aligned(bad).bytes()).message(),
              StrCat("m.gguf: general.alignment is ", bad,
                     "; must be a power of two from 8 to 1073741824"));
  }
  for (const std::uint32_t good : {8u, 64u, 4096u, 1u << 30}) {
    EXPECT_TRUE(Parse(aligned(good).bytes()).ok()) << good;
  }
  Check(
      {{"of type string", Raw().Head(0, 1).Key("general.alignment", GgufType::kString).String("32"),
        StatusCode::kCorrupt, "general.alignment has type string; must be an integer"}});
}

TEST(GgufCorrupt, Tensors) {
  const auto f32 = GgmlType::kF32;
  const auto one = [](const std::vector<std::uint64_t>& dims, GgmlType type, std::uint64_t offset) {
    return Raw().Head(1, 0).Tensor("t", dims, type, offset);
  };
  Check({
      {"no name", Raw().Head(1, 0).Tensor("", {1}, f32, 0).Align().Zeros(4), StatusCode::kCorrupt,
       "tensor 1 of 1: offset 24: its name has 0 bytes; must have 1 to 65535"},
      {"rank 5", one({1, 1, 1, 1, 1}, f32, 0).Align().Zeros(4), StatusCode::kCorrupt,
       "tensor 1 of 1: 't': offset 33: it has 5 dimensions; at most 4 are allowed"},
      {"a dimension of 0", one({4, 0}, f32, 0).Align(), StatusCode::kCorrupt,
       "tensor 1 of 1: 't': offset 45: dimension 1 is 0; must be 1 to 2305843009213693951, for "
       "fewer than 2^63 values"},
      {"a negative dimension", one({~0ull}, f32, 0).Align(), StatusCode::kCorrupt,
       "tensor 1 of 1: 't': offset 37: dimension 0 is 18446744073709551615; must be 1 to "
       "9223372036854775807, for fewer than 2^63 values"},
      {"product overflows", one({1ull << 32, 1ull << 31}, f32, 0).Align(), StatusCode::kCorrupt,
       "tensor 1 of 1: 't': offset 45: dimension 1 is 2147483648; must be 1 to 2147483647, for "
       "fewer than 2^63 values"},
      {"bytes overflow", one({1ull << 62}, f32, 0).Align().Zeros(64), StatusCode::kCorrupt,
       "tensor 't': its 4611686018427387904 blocks of 4 bytes at data offset 0 do not fit; the "
       "data begins at offset 64 of a file of 128 bytes, which may be truncated"},
      {"unknown type", one({32}, static_cast<GgmlType>(4), 0).Align(), StatusCode::kUnsupported,
       "tensor 1 of 1: 't': offset 45: its type is 4, which is not known"},
      {"half a block", one({48, 2}, GgmlType::kQ8_0, 0).Align().Zeros(102), StatusCode::kCorrupt,
       "tensor 1 of 1: 't': offset 53: its rows have 48 values; must be a multiple of 32 for type "
       "q8_0"},
      {"unaligned", one({1}, f32, 4).Align().Zeros(32), StatusCode::kCorrupt,
       "tensor 't': its offset is 4; must be a multiple of the alignment, 32"},
      {"past the end", one({8}, f32, 64).Align().Zeros(64), StatusCode::kCorrupt,
       "tensor 't': its 8 blocks of 4 bytes at data offset 64 do not fit; the data begins at "
       "offset 64 of a file of 128 bytes, which may be truncated"},
      {"offset overflows", one({8}, f32, ~0ull - 31).Align().Zeros(64), StatusCode::kCorrupt,
       "tensor 't': its 8 blocks of 4 bytes at data offset 18446744073709551584 do not fit; the "
       "data begins at offset 64 of a file of 128 bytes, which may be truncated"},
      {"no data", one({8}, f32, 0), StatusCode::kCorrupt,
       "tensor 't': its 8 blocks of 4 bytes at data offset 0 do not fit; the data begins at "
       "offset 64 of a file of 57 bytes, which may be truncated"},
      {"twice",
       Raw().Head(2, 0).Tensor("t", {1}, f32, 0).Tensor("t", {1}, f32, 32).Align().Zeros(64),
       StatusCode::kCorrupt, "tensor 't' occurs twice"},
      {"overlap",
       Raw().Head(2, 0).Tensor("b", {9}, f32, 0).Tensor("a", {1}, f32, 32).Align().Zeros(64),
       StatusCode::kCorrupt, "tensors 'b' and 'a' overlap at offset 128"},
      {"the same place",
       Raw().Head(2, 0).Tensor("a", {8}, f32, 32).Tensor("b", {8}, f32, 32).Align().Zeros(64),
       StatusCode::kCorrupt, "tensors 'a' and 'b' overlap at offset 128"},
  });
}

// Accepts files that other readers reject.
TEST(GgufCorrupt, Tolerated) {
  const auto f32 = GgmlType::kF32;
  EXPECT_TRUE(Parse(Raw().Head(0, 0, 2).bytes()).ok());
  EXPECT_TRUE(Parse(Raw().Head(0, 0).bytes()).ok());
  // Tensors in any order, a gap between them, no padding after the last one, a tensor of rank 0.
  EXPECT_TRUE(Parse(Raw()
                        .Head(2, 0)
                        .Tensor("b", {1}, f32, 64)
                        .Tensor("a", {}, f32, 0)
                        .Align()
                        .Zeros(68)
                        .bytes())
                  .ok());
}

// Returns a file with each kind of field, in which every byte matters.
std::string SmallFile() {
  return Raw()
      .Head(2, 4)
      .Key("a", GgufType::kString)
      .String("text")
      .Key("b", GgufType::kArray)
      .U32(8)
      .U64(2)
      .String("x")
      .String("yz")
      .Key("c", GgufType::kArray)
      .U32(6)
      .U64(2)
      .Put(1.0f)
      .Put(2.0f)
      .Key("general.alignment", GgufType::kUint32)
      .U32(8)
      .Tensor("t", {2, 3}, GgmlType::kF32, 0)
      .Tensor("u", {32}, GgmlType::kQ8_0, 24)
      .Align(8)
      .Zeros(24 + 34)
      .bytes();
}

TEST(GgufCorrupt, TruncatedAnywhere) {
  const std::string whole = SmallFile();
  ASSERT_TRUE(Parse(whole).ok()) << Parse(whole).message();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const Status status = Parse(whole.substr(0, length));
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << length;
  }
}

// Changes every byte to every other value. Parsing returns an error or a file.
TEST(GgufCorrupt, AnyByteChanged) {
  const std::string whole = SmallFile();
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const Status status = Parse(changed);
      accepted += status.ok();
      if (status.ok()) continue;
      EXPECT_THAT(status.message(), HasSubstr("m.gguf: "));
    }
  }
  EXPECT_GT(accepted, 58u * 255);  // tensor data may hold any bytes
  EXPECT_LT(accepted, whole.size() * 255);
}

// Sorting 100,000 keys that share a long prefix takes no quadratic time.
TEST(GgufCorrupt, ManyKeysTakeNoQuadraticTime) {
  constexpr std::uint64_t kKeys = 100000;
  Raw file;
  file.Head(0, kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    file.Key(StrCat("a.rather.long.common.prefix.", kKeys - i), GgufType::kUint8).Text("x");
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Parse(file.bytes()).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(GgufCorrupt, OpenNamesThePath) {
  const Status missing = GgufFile::Open("/nonexistent/m.gguf").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "cannot open /nonexistent/m.gguf: No such file or directory");
  EXPECT_EQ(GgufFile::Open("/").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::gguf_corrupt_test
