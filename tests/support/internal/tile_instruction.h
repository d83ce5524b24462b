// Decodes the instructions of AMX tiles, which are VEX-coded.
//
// Thread safety: pure; nothing allocates.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache::testing {

enum class TileOperation : std::uint8_t {
  kLoadConfig,
  kStoreConfig,
  kRelease,
  kZero,
  kLoad,
  kStore,
  kProductsSignedSigned,      // TDPBSSD
  kProductsSignedUnsigned,    // TDPBSUD
  kProductsUnsignedSigned,    // TDPBUSD
  kProductsUnsignedUnsigned,  // TDPBUUD
};

// base + index × scale + displacement. Registers are numbered as in the coding: rax, rcx, rdx, rbx, rsp, rbp, rsi,
// rdi, r8 to r15.
struct TileAddress {
  static constexpr int kNone = -1;
  static constexpr int kNextInstruction = -2;  // as a base
  int base = kNone;
  int index = kNone;
  int scale = 1;
  std::int32_t displacement = 0;
};

struct TileInstruction {
  TileOperation operation = TileOperation::kRelease;
  int tile = 0;   // sums, or the tile that is loaded, stored or zeroed
  int first = 0;  // factors
  int second = 0;
  TileAddress address = {};  // of a tile: its stride is index × scale
  int bytes = 0;             // of the instruction
};

// Returns the instruction at `code`, or nothing if it is none of these. Reads at most 15 bytes.
std::optional<TileInstruction> DecodeTileInstruction(const std::uint8_t* code);

}  // namespace kvcache::testing
