// Metadata values of a GGUF file: typed, unaligned, read in place.
//
// All of these are views into the file's bytes and are valid while their GgufFile exists. Only
// GgufFile makes them, after it has checked all lengths.
//
// Thread safety: const calls from any number of threads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>

namespace kvcache {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

// The numbers of the file format.
enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Returns "uint32", "string", "array", …; "unknown" for other numbers.
std::string_view GgufTypeName(GgufType type);

// Returns the size of one value; 0 for strings, arrays and unknown numbers.
std::size_t GgufTypeBytes(GgufType type);

bool IsGgufInteger(GgufType type);

// One key and its value.
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kUint8;     // kArray for arrays
  GgufType element = GgufType::kUint8;  // an array's elements; else the same as type
  std::uint64_t count = 1;              // elements; 1 for a scalar
  // The elements in sequence, not aligned: numbers in little-endian order, strings as a length of
  // 8 bytes followed by the characters.
  std::span<const std::byte> bytes;
};

// Reads a T at `at`, which may be unaligned.
template <typename T>
T LoadUnaligned(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Return element i, converted from its type in the file. REQUIRES: i < entry.count, and an integer,
// float or bool element that fits the result (GgufFile's getters check that).
std::int64_t GgufIntAt(const GgufEntry& entry, std::uint64_t i);
double GgufFloatAt(const GgufEntry& entry, std::uint64_t i);

// An array of numbers of any width in the file, converted to T on access.
template <typename T, auto kAt>
class GgufNumbers {
 public:
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = T;
    iterator(const GgufNumbers* array, std::size_t i) : array_(array), i_(i) {}
    T operator*() const { return (*array_)[i_]; }
    iterator& operator++() {
      ++i_;
      return *this;
    }
    bool operator==(const iterator& other) const { return i_ == other.i_; }

   private:
    const GgufNumbers* array_;
    std::size_t i_;
  };

  GgufNumbers() = default;
  explicit GgufNumbers(const GgufEntry& entry) : entry_(entry) {}
  std::size_t size() const { return entry_.bytes.empty() ? 0 : entry_.count; }
  bool empty() const { return size() == 0; }
  T operator[](std::size_t i) const { return static_cast<T>(kAt(entry_, i)); }
  iterator begin() const { return {this, 0}; }
  iterator end() const { return {this, size()}; }

 private:
  GgufEntry entry_;
};

using GgufInts = GgufNumbers<std::int64_t, GgufIntAt>;
using GgufFloats = GgufNumbers<float, GgufFloatAt>;
using GgufBools = GgufNumbers<bool, GgufIntAt>;

// An array of strings, for sequential reading. Strings may hold any bytes.
class GgufStrings {
 public:
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = std::string_view;
    explicit iterator(const std::byte* at) : at_(at) {}
    std::string_view operator*() const {
      return {reinterpret_cast<const char*>(at_ + sizeof(std::uint64_t)), Length()};
    }
    iterator& operator++() {
      at_ += sizeof(std::uint64_t) + Length();
      return *this;
    }
    bool operator==(const iterator& other) const { return at_ == other.at_; }

   private:
    std::size_t Length() const { return LoadUnaligned<std::uint64_t>(at_); }
    const std::byte* at_;
  };

  GgufStrings() = default;
  explicit GgufStrings(const GgufEntry& entry) : bytes_(entry.bytes), count_(entry.count) {}
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  iterator begin() const { return iterator(bytes_.data()); }
  iterator end() const { return iterator(bytes_.data() + bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t count_ = 0;
};

}  // namespace kvcache
