// Types whose blocks hold indices of a codebook. The bytes of a super-block of 256 values:
//
//   IQ2_XXS  d, 8 × (4 indices, u32)           the u32: 4 × 7 sign bits, 4 bits s
//   IQ2_XS   d, 32 × u16, 8 × s                the u16: 9 bits of index, 7 sign bits
//   IQ2_S    d, 32 indices, 32 × signs, 8 × high bits of 4 indices (2 each), 8 × s
//   IQ3_XXS  d, 64 indices, 8 × u32            the u32 as in IQ2_XXS; each 7 bits for two groups
//   IQ3_S    d, 64 indices, 8 × high bits of 8 indices, 32 × signs, 4 × s
//   IQ1_S    d, 32 indices, 8 × u16            the u16: 4 × 3 high bits, 3 bits s, the eighth's sign
//   IQ1_M    32 indices, 16 × 2 × (3 high bits, the eighth's sign), 4 × u16
//            the u16: 4 × 3 bits s, 4 bits of d
//
// A scale is 2 s + 1; s has 4 bits, two to a byte, where nothing else is said. Groups are eight values
// (IQ1, IQ2) or four (IQ3). Eight signs are the bits of a byte, 1 for negative. Seven of them have the
// eighth as their parity, so that their number is even.
#include <bit>

#include "tensor/block_codec.h"
#include "tensor/codebooks.h"
#include "tensor/coded_readers.h"

namespace kvcache::codec::codebook {
namespace {

constexpr std::size_t kGroups = 32;  // of eight values

unsigned ByteAt(const std::byte* bytes, std::size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

unsigned NibbleAt(const std::byte* bytes, std::size_t i) {
  return ByteAt(bytes, i / 2) >> i % 2 * 4 & 15u;
}

std::uint8_t ScaleFrom(unsigned s) {
  return static_cast<std::uint8_t>(2 * s + 1);
}

unsigned WithParity(unsigned seven) {
  return seven | static_cast<unsigned>(std::popcount(seven) & 1) << 7;
}

// Eight digits of two bits and their signs.
void PutIq2(unsigned entry, unsigned signs, std::uint8_t* codes) {
  for (unsigned i = 0; i < 8; ++i) {
    codes[i] = static_cast<std::uint8_t>((entry >> 2 * i & 3u) | (signs >> i & 1u) << 2);
  }
}

// Four digits of three bits and their signs.
void PutIq3(unsigned entry, unsigned signs, std::uint8_t* codes) {
  for (unsigned i = 0; i < 4; ++i) {
    codes[i] = static_cast<std::uint8_t>((entry >> 3 * i & 7u) | (signs >> i & 1u) << 3);
  }
}

// Eight digits of two bits; `minus` is 1 where an eighth is subtracted.
void PutIq1(unsigned entry, unsigned minus, std::uint8_t* codes) {
  for (unsigned i = 0; i < 8; ++i) {
    codes[i] = static_cast<std::uint8_t>((entry >> 2 * i & 3u) << 1 | (minus ^ 1u));
  }
}

}  // namespace

void ReadIq2Xxs(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t b = 0; b < 8; ++b) {
    const std::byte* const at = bytes + 2 + 8 * b;
    const auto rest = Load<std::uint32_t>(at + 4);
    block->scales[b] = ScaleFrom(rest >> 28);
    for (std::size_t g = 0; g < 4; ++g) {
      PutIq2(kIq2Xxs[ByteAt(at, g)], WithParity(rest >> 7 * g & 127u),
             &block->codes[32 * b + 8 * g]);
    }
  }
}

void ReadIq2Xs(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t s = 0; s < 16; ++s) block->scales[s] = ScaleFrom(NibbleAt(bytes + 66, s));
  for (std::size_t g = 0; g < kGroups; ++g) {
    const auto both = Load<std::uint16_t>(bytes + 2 + 2 * g);
    PutIq2(kIq2Xs[both & 511u], WithParity(both >> 9), &block->codes[8 * g]);
  }
}

void ReadIq2S(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t s = 0; s < 16; ++s) block->scales[s] = ScaleFrom(NibbleAt(bytes + 74, s));
  for (std::size_t g = 0; g < kGroups; ++g) {
    const unsigned high = ByteAt(bytes, 66 + g / 4) >> g % 4 * 2 & 3u;
    PutIq2(kIq2S[ByteAt(bytes, 2 + g) | high << 8], ByteAt(bytes, 34 + g), &block->codes[8 * g]);
  }
}

void ReadIq3Xxs(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t b = 0; b < 8; ++b) {
    const auto rest = Load<std::uint32_t>(bytes + 66 + 4 * b);
    block->scales[b] = ScaleFrom(rest >> 28);
    for (std::size_t g = 0; g < 8; ++g) {
      const unsigned signs = WithParity(rest >> g / 2 * 7 & 127u) >> g % 2 * 4;
      PutIq3(kIq3Xxs[ByteAt(bytes, 2 + 8 * b + g)], signs, &block->codes[32 * b + 4 * g]);
    }
  }
}

void ReadIq3S(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t b = 0; b < 8; ++b) block->scales[b] = ScaleFrom(NibbleAt(bytes + 106, b));
  for (std::size_t g = 0; g < 2 * kGroups; ++g) {
    const unsigned high = ByteAt(bytes, 66 + g / 8) >> g % 8 & 1u;
    PutIq3(kIq3S[ByteAt(bytes, 2 + g) | high << 8], NibbleAt(bytes + 74, g), &block->codes[4 * g]);
  }
}

void ReadIq1S(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  for (std::size_t b = 0; b < 8; ++b) {
    const unsigned rest = Load<std::uint16_t>(bytes + 34 + 2 * b);
    block->scales[b] = ScaleFrom(rest >> 12 & 7u);
    for (std::size_t g = 0; g < 4; ++g) {
      const unsigned index = ByteAt(bytes, 2 + 4 * b + g) | (rest >> 3 * g & 7u) << 8;
      PutIq1(kIq1[index], rest >> 15, &block->codes[32 * b + 8 * g]);
    }
  }
}

void ReadIq1M(const std::byte* bytes, CodedBlock* block) {
  unsigned d = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const unsigned four = Load<std::uint16_t>(bytes + 48 + 2 * i);
    d |= four >> 12 << 4 * i;
    for (std::size_t s = 0; s < 4; ++s) block->scales[4 * i + s] = ScaleFrom(four >> 3 * s & 7u);
  }
  block->d = static_cast<std::uint16_t>(d);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const unsigned rest = NibbleAt(bytes + 32, g);
    PutIq1(kIq1[ByteAt(bytes, g) | (rest & 7u) << 8], rest >> 3, &block->codes[8 * g]);
  }
}

}  // namespace kvcache::codec::codebook
