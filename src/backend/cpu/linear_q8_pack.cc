#include <cstring>

#include "backend/cpu/linear_q8.h"

namespace kvcache::cpu::q8 {
namespace {

constexpr std::int64_t kGroupInputs = 4;  // inputs of a row that lie together
constexpr std::uint32_t kSignBits = 0x80808080u;

// One file block of each row, into the pair's scales and the block's quants.
void PackBlock(const std::byte* file_block, std::int64_t rows, std::int64_t row_bytes,
               std::byte* scales, std::byte* quants) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* const source = file_block + row * row_bytes;
    std::memcpy(scales + row * 2, source, 2);
    for (std::int64_t group = 0; group < kBlock / kGroupInputs; ++group) {
      std::uint32_t four;
      std::memcpy(&four, source + 2 + group * 4, 4);
      four ^= kSignBits;
      std::memcpy(quants + (group * kPanelRows + row) * 4, &four, 4);
    }
  }
  for (std::int64_t row = rows; row < kPanelRows; ++row) {
    std::memset(scales + row * 2, 0, 2);
    for (std::int64_t group = 0; group < kBlock / kGroupInputs; ++group) {
      std::memcpy(quants + (group * kPanelRows + row) * 4, &kSignBits, 4);
    }
  }
}

}  // namespace

void PackPanel(const std::byte* file_rows, std::int64_t rows, std::int64_t inputs,
               std::byte* panel) {
  const std::int64_t blocks = inputs / kBlock;
  const std::int64_t row_bytes = blocks * kFileBlockBytes;
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::byte* const pair = panel + block / 2 * kPairBytes;
    PackBlock(file_rows + block * kFileBlockBytes, rows, row_bytes,
              pair + block % 2 * (kPairScaleBytes / 2),
              pair + kPairScaleBytes + block % 2 * kBlockQuantBytes);
  }
}

}  // namespace kvcache::cpu::q8
