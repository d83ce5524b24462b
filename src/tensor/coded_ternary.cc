// Values of -1, 0 and 1, and an f16 scale d of 256 of them, which is at the end:
//
//   TQ1_0  32 bytes, byte i: values i + 32 n; 16 bytes, byte i: values 160 + i + 16 n;
//          4 bytes, byte i: values 240 + i + 4 n
//   TQ2_0  64 bytes, for each half of 128 values 32: bits 2 n and 2 n + 1 of byte i are value i + 32 n
//
// A byte of TQ1_0 is a fraction of 256 whose digits to the base of three are the values n = 0 to 4.
#include "tensor/block_codec.h"
#include "tensor/coded_readers.h"

namespace kvcache::codec::ternary {
namespace {

// `bytes` [width] hold `count` values each.
void ReadThirds(const std::byte* bytes, std::size_t width, std::size_t count, std::uint8_t* codes) {
  for (std::size_t i = 0; i < width; ++i) {
    auto rest = std::to_integer<std::uint8_t>(bytes[i]);
    for (std::size_t n = 0; n < count; ++n) {
      codes[n * width + i] = static_cast<std::uint8_t>(rest * 3u >> 8);
      rest = static_cast<std::uint8_t>(rest * 3u);
    }
  }
}

}  // namespace

void ReadTq1(const std::byte* bytes, CodedBlock* block) {
  ReadThirds(bytes, 32, 5, &block->codes[0]);
  ReadThirds(bytes + 32, 16, 5, &block->codes[160]);
  ReadThirds(bytes + 48, 4, 4, &block->codes[240]);
  block->d = Load<std::uint16_t>(bytes + 52);
}

void ReadTq2(const std::byte* bytes, CodedBlock* block) {
  for (std::size_t i = 0; i < 256; ++i) {
    const auto byte = std::to_integer<unsigned>(bytes[i / 128 * 32 + i % 32]);
    block->codes[i] = byte >> i % 128 / 32 * 2 & 3u;
  }
  block->d = Load<std::uint16_t>(bytes + 64);
}

}  // namespace kvcache::codec::ternary
