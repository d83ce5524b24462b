// Repacks rows of block-quantised weights from the file into panels (common/block_layout.h).
#include <array>
#include <bit>
#include <cstring>

#include "backend/cpu/linear/block/linear_block.h"
#include "tensor/coded_block.h"

namespace kvcache::cpu::block {
namespace {

constexpr int kGroups = 8;  // of four inputs, in 32
using Groups = std::array<std::uint32_t, kGroups>;

constexpr std::uint32_t kEachByte = 0x01010101u;
constexpr std::uint32_t kLowNibbles = 0x0f0f0f0fu;
constexpr std::uint32_t kHighNibbles = ~kLowNibbles;

std::uint32_t LoadWord(const std::byte* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

Groups LoadGroups(const std::byte* at) {
  Groups groups;
  std::memcpy(groups.data(), at, sizeof(groups));
  return groups;
}

// Stores this row's four bytes of line `line`.
void StoreWord(std::byte* lines, int line, std::uint32_t word) {
  std::memcpy(lines + line * kLine, &word, sizeof(word));
}

// Spreads the four bits of `nibble` to bit `bit` of four bytes.
std::uint32_t Spread(std::uint32_t nibble, int bit) {
  return (nibble * 0x00204081u & 0x01010101u) << bit;
}

// ---- Blocks of 32: `lines` is where this row's words of the body begin

// 16 bytes of nibbles: the file pairs inputs i and i + 16 as the panel does.
void PackNibbles(const std::byte* nibbles, std::byte* lines) {
  for (int g = 0; g < kGroups / 2; ++g) StoreWord(lines, g, LoadWord(nibbles + g * 4));
}

void PackFifthBits(std::uint32_t high, std::byte* lines) {
  std::uint32_t word = 0;
  for (int g = 0; g < kGroups; ++g) word |= Spread(high >> (4 * g) & 15u, g);
  StoreWord(lines, 0, word);
}

// One file block: `scales` scales (d, or d and m) to the head, the rest to the body.
void PackBlock(DType dtype, const std::byte* block, std::byte* head, std::byte* lines) {
  const bool has_minimum = LayoutOf(dtype).head_bytes == 64;
  std::memcpy(head, block, 2);
  if (has_minimum) std::memcpy(head + 2 * kPanelRows, block + 2, 2);
  const std::byte* const quants = block + (has_minimum ? 4 : 2);
  switch (dtype) {
    case DType::kQ8_0:
      for (int g = 0; g < kGroups; ++g) {
        StoreWord(lines, g, LoadWord(quants + g * 4) ^ 0x80808080u);
      }
      break;
    case DType::kQ5_0:
    case DType::kQ5_1:
      PackFifthBits(LoadWord(quants), lines);
      PackNibbles(quants + 4, lines + kLine);
      break;
    default: PackNibbles(quants, lines); break;
  }
}

// MXFP4: one exponent byte per block, then nibbles. `head` is the place of this row's first
// exponent.
void PackMxfp4(const std::byte* values, std::int64_t blocks, std::byte* head, std::byte* words) {
  constexpr Layout kLayout = LayoutOf(DType::kMXFP4);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::byte* const block = values + b * InfoOf(DType::kMXFP4).block_bytes;
    head[b * kLayout.head_bytes] = block[0];
    PackNibbles(block + 1, words + b * kLayout.body_bytes);
  }
}

// ---- Super-blocks of 256

// Packs the lower (or upper) nibbles of 32 bytes into pairs: inputs i and i + 16 of the same 32.
void PackHalfNibbles(const Groups& bytes, bool upper, std::byte* lines) {
  for (int g = 0; g < kGroups / 2; ++g) {
    const std::uint32_t a = bytes[static_cast<std::size_t>(g)];
    const std::uint32_t b = bytes[static_cast<std::size_t>(g + kGroups / 2)];
    StoreWord(lines, g,
              upper ? (a >> 4 & kLowNibbles) | (b & kHighNibbles)
                    : (a & kLowNibbles) | (b & kLowNibbles) << 4);
  }
}

// Q4_K and Q5_K: d, dmin, 12 bytes of scales, (32 bytes of fifth bits,) nibbles.
void PackWithMinimum(DType dtype, const std::byte* super, std::byte* head, std::byte* words,
                     std::int64_t row) {
  constexpr int kScales = 12;
  std::memcpy(head + row * 2, super, 2);
  std::memcpy(head + 2 * kPanelRows + row * 2, super + 2, 2);
  for (int i = 0; i < kScales; ++i) head[kLine + i * kPanelRows + row] = super[4 + i];

  const bool fifth = dtype == DType::kQ5_K;
  const std::byte* const high_at = super + 4 + kScales;
  const std::byte* const nibbles = high_at + (fifth ? kBlock : 0);
  const Groups high = fifth ? LoadGroups(high_at) : Groups{};
  for (int j = 0; j < kChunkBlocks; ++j) {
    std::byte* lines = words + j * LayoutOf(dtype).body_bytes;
    if (fifth) {
      std::uint32_t word = 0;
      for (int g = 0; g < kGroups; ++g) {
        word |= (high[static_cast<std::size_t>(g)] >> j & 0x01010101u) << g;
      }
      StoreWord(lines, 0, word);
      lines += kLine;
    }
    PackHalfNibbles(LoadGroups(nibbles + j / 2 * kBlock), j % 2 == 1, lines);
  }
}

// Q6_K: nibbles, two high bits, 16 scales, d.
void PackQ6K(const std::byte* super, std::byte* head, std::byte* words, std::int64_t row) {
  constexpr int kSubs = 16;
  for (int i = 0; i < kSubs; ++i) head[i * kPanelRows + row] = super[192 + i];
  std::memcpy(head + kSubs * kPanelRows + row * 2, super + 208, 2);
  for (int j = 0; j < kChunkBlocks; ++j) {
    const int half = j / 4;
    const int quarter = j % 4;
    const Groups nibbles = LoadGroups(super + half * 64 + quarter % 2 * 32);
    const Groups high = LoadGroups(super + 128 + half * 32);
    const auto nibble = [&](int g) {
      return nibbles[static_cast<std::size_t>(g)] >> (quarter / 2 * 4) & kLowNibbles;
    };
    for (int s = 0; s < 2; ++s) {  // 16 inputs each
      std::byte* const lines = words + j * LayoutOf(DType::kQ6_K).body_bytes + s * 3 * kLine;
      std::uint32_t word = 0;
      for (int g = 0; g < 4; ++g) {
        const std::uint32_t bits = high[static_cast<std::size_t>(4 * s + g)] >> (2 * quarter);
        word |= (bits & 0x03030303u) << (2 * g);
      }
      StoreWord(lines, 0, word);
      StoreWord(lines, 1, nibble(4 * s) | nibble(4 * s + 2) << 4);
      StoreWord(lines, 2, nibble(4 * s + 1) | nibble(4 * s + 3) << 4);
    }
  }
}

// ---- Codes (tensor/coded_block.h)

// Packs 32 codes of two bits.
void PackPairs(const Groups& codes, std::byte* lines) {
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint32_t word = 0;
    for (std::size_t g = 0; g < 4; ++g) word |= codes[4 * half + g] << 2 * g;
    StoreWord(lines, static_cast<int>(half), word);
  }
}

// Packs 32 codes of three bits: in each half, the first three groups to a nibble of a line, the fourth to bits 3.
void PackThrees(const Groups& codes, std::byte* lines) {
  for (int line = 0; line < 3; ++line) {
    std::uint32_t word = 0;
    for (std::size_t half = 0; half < 2; ++half) {
      const std::uint32_t fourth = codes[4 * half + 3] >> line & kEachByte;
      word |= (codes[4 * half + static_cast<std::size_t>(line)] | fourth << 3) << 4 * half;
    }
    StoreWord(lines, line, word);
  }
}

// Packs 32 codes of four bits: in each `sub` values, group g is below the one that is half of them away.
void PackFours(const Groups& codes, int sub, std::byte* lines) {
  const int apart = sub / 8;
  for (int line = 0; line < kGroups / 2; ++line) {
    const auto g = static_cast<std::size_t>(line / apart * 2 * apart + line % apart);
    StoreWord(lines, line, codes[g] | codes[g + static_cast<std::size_t>(apart)] << 4);
  }
}

void PackCodes(const codec::CodeType& type, const Groups& codes, std::byte* lines) {
  if (type.bits == 4) return PackFours(codes, type.sub, lines);
  if (type.bits == 3) return PackThrees(codes, lines);
  PackPairs(codes, lines);
}

// A scale of NVFP4 (codec::ScaleOfNvfp4) with an exponent of five bits, three larger than its own of four: then
// none is subnormal, and a kernel multiplies no subnormal floats, which takes a processor many times as long.
std::byte WideExponent(std::uint8_t bits) {
  const float scale = codec::ScaleOfNvfp4(bits);
  return static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale * 0x1p-117f) >> 20);
}

// The scales of one block; `values` counts the inputs before it in the chunk.
void PackCodedHead(DType dtype, const codec::CodedBlock& block, std::int64_t values,
                   std::int64_t row, std::byte* head) {
  const auto subs =
      static_cast<std::size_t>(InfoOf(dtype).block_size / codec::CodeTypeOf(dtype).sub);
  const auto place = [&](std::size_t sub) {
    return head + static_cast<std::int64_t>(sub) * kPanelRows + row;
  };
  if (dtype == DType::kNVFP4) {
    head += values * kPanelRows / codec::CodeTypeOf(dtype).sub;
    for (std::size_t s = 0; s < subs; ++s) *place(s) = WideExponent(block.scales[s]);
    return;
  }
  if (dtype == DType::kIQ4_NL) head += values / kBlock * LayoutOf(dtype).head_bytes;
  std::memcpy(head + row * 2, &block.d, 2);
  head += 2 * kPanelRows;
  if (dtype == DType::kQ2_K) {
    std::memcpy(head + row * 2, &block.dmin, 2);
    head += 2 * kPanelRows;
    for (std::size_t s = 0; s < subs; ++s) {
      *place(s) = static_cast<std::byte>(block.scales[s] | block.minima[s] << 4);
    }
    return;
  }
  const std::int64_t head_bytes = LayoutOf(dtype).head_bytes * kChunkBlocks;
  if (dtype == DType::kIQ4_NL || head_bytes == 2 * kPanelRows) return;
  for (std::size_t s = 0; s < subs; ++s) *place(s) = std::byte{block.scales[s]};
}

// One row of a chunk of `blocks` × 32 inputs.
void PackCoded(DType dtype, const std::byte* from, std::int64_t blocks, std::int64_t row,
               std::byte* chunk) {
  const codec::CodeType type = codec::CodeTypeOf(dtype);
  const std::int64_t size = InfoOf(dtype).block_size;
  std::byte* lines = chunk + HeadBytes(dtype, blocks) + row * 4;
  codec::CodedBlock block;
  for (std::int64_t values = 0; values < blocks * kBlock; values += size) {
    codec::ReadCodedBlock(dtype, from + BytesOf(dtype, values), &block);
    PackCodedHead(dtype, block, values, row, chunk);
    for (std::int64_t i = 0; i < size; i += kBlock) {
      Groups codes;
      std::memcpy(codes.data(), &block.codes[static_cast<std::size_t>(i)], sizeof(codes));
      PackCodes(type, codes, lines);
      lines += LayoutOf(dtype).body_bytes;
    }
  }
}

// Packs one row of a chunk.
void PackRow(DType dtype, const std::byte* values, std::int64_t blocks, std::int64_t row,
             std::byte* chunk) {
  const Layout layout = LayoutOf(dtype);
  std::byte* const words = chunk + HeadBytes(dtype, blocks) + row * 4;
  if (dtype == DType::kQ6_K) return PackQ6K(values, chunk, words, row);
  if (codec::CodeTypeOf(dtype).bits > 0) return PackCoded(dtype, values, blocks, row, chunk);
  if (layout.input_scales == InputScales::kPer256) {
    return PackWithMinimum(dtype, values, chunk, words, row);
  }
  if (dtype == DType::kMXFP4) return PackMxfp4(values, blocks, chunk + row, words);
  for (std::int64_t b = 0; b < blocks; ++b) {
    PackBlock(dtype, values + b * InfoOf(dtype).block_bytes,
              chunk + b * layout.head_bytes + row * 2, words + b * layout.body_bytes);
  }
}

}  // namespace

void PackPanel(DType dtype, const std::byte* file_rows, std::int64_t rows, std::int64_t inputs,
               std::byte* panel) {
  if (rows < kPanelRows) {
    std::memset(panel, 0, static_cast<std::size_t>(PanelBytes(dtype, inputs)));
  }
  const std::int64_t row_bytes = BytesOf(dtype, inputs);
  std::byte* to = panel;
  for (std::int64_t chunk = 0; chunk < Chunks(inputs); ++chunk) {
    const std::int64_t blocks = BlocksOf(inputs, chunk);
    const std::byte* const from = file_rows + BytesOf(dtype, chunk * kChunk);
    for (std::int64_t row = 0; row < rows; ++row) {
      PackRow(dtype, from + row * row_bytes, blocks, row, to);
    }
    to += ChunkBytes(dtype, blocks);
  }
}

}  // namespace kvcache::cpu::block
