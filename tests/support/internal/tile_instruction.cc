#include "support/internal/tile_instruction.h"

#include <cstring>

namespace kvcache::testing {
namespace {

// The last two bytes of a three-byte VEX prefix, the opcode and the byte after it. Bits of VEX that extend registers
// are inverted.
struct Vex {
  int r = 0, x = 0, b = 0;  // 8 if a register is one of the upper eight
  int map = 0;
  int w = 0;
  int vvvv = 0;
  int length = 0;
  int prefix = 0;  // 0: none, 1: 66, 2: F3, 3: F2
  int opcode = 0;
  int mod = 0, reg = 0, rm = 0;
};

constexpr int kPrefixBytes = 5;  // C4, two bytes, opcode, ModRM

Vex ReadVex(const std::uint8_t* code) {
  Vex vex;
  vex.r = (code[1] & 0x80) != 0 ? 0 : 8;
  vex.x = (code[1] & 0x40) != 0 ? 0 : 8;
  vex.b = (code[1] & 0x20) != 0 ? 0 : 8;
  vex.map = code[1] & 31;
  vex.w = code[2] >> 7;
  vex.vvvv = ~(code[2] >> 3) & 15;
  vex.length = code[2] >> 2 & 1;
  vex.prefix = code[2] & 3;
  vex.opcode = code[3];
  vex.mod = code[4] >> 6;
  vex.reg = code[4] >> 3 & 7;
  vex.rm = code[4] & 7;
  return vex;
}

constexpr int kSibFollows = 4;
constexpr int kRbp = 5;
constexpr int kRsp = 4;

// Reads the address that follows ModRM. Returns its bytes.
int ReadAddress(const Vex& vex, const std::uint8_t* at, TileAddress* address) {
  int bytes = 0;
  int base = vex.rm;
  if (vex.rm == kSibFollows) {
    const int sib = at[bytes++];
    const int index = (sib >> 3 & 7) | vex.x;
    if (index != kRsp) address->index = index;
    address->scale = 1 << (sib >> 6);
    base = sib & 7;
  }
  const bool has_no_base = base == kRbp && vex.mod == 0;
  if (!has_no_base) {
    address->base = base | vex.b;
  } else if (vex.rm != kSibFollows) {
    address->base = TileAddress::kNextInstruction;
  }
  if (vex.mod == 1) {
    const int byte = at[bytes++];
    address->displacement = byte < 128 ? byte : byte - 256;
  } else if (vex.mod == 2 || has_no_base) {
    std::memcpy(&address->displacement, at + bytes, 4);
    bytes += 4;
  }
  return bytes;
}

std::optional<TileInstruction> WithAddress(const Vex& vex, const std::uint8_t* code,
                                           TileOperation operation) {
  TileInstruction instruction{.operation = operation, .tile = vex.reg};
  instruction.bytes = kPrefixBytes + ReadAddress(vex, code + kPrefixBytes, &instruction.address);
  return instruction;
}

// Opcode 49.
std::optional<TileInstruction> DecodeConfig(const Vex& vex, const std::uint8_t* code) {
  if (vex.vvvv != 0) return std::nullopt;
  if (vex.mod != 3) {
    if (vex.reg != 0 || vex.prefix > 1) return std::nullopt;
    return WithAddress(vex, code,
                       vex.prefix == 0 ? TileOperation::kLoadConfig : TileOperation::kStoreConfig);
  }
  if (vex.rm != 0) return std::nullopt;
  if (vex.prefix == 0 && vex.reg == 0) {
    return TileInstruction{.operation = TileOperation::kRelease, .bytes = kPrefixBytes};
  }
  if (vex.prefix != 3 || vex.r != 0) return std::nullopt;
  return TileInstruction{.operation = TileOperation::kZero, .tile = vex.reg, .bytes = kPrefixBytes};
}

// Opcode 4B. Loads with and without the hint that the data are not used again are the same.
std::optional<TileInstruction> DecodeMove(const Vex& vex, const std::uint8_t* code) {
  if (vex.vvvv != 0 || vex.r != 0 || vex.mod == 3 || vex.rm != kSibFollows || vex.prefix == 0) {
    return std::nullopt;
  }
  return WithAddress(vex, code, vex.prefix == 2 ? TileOperation::kStore : TileOperation::kLoad);
}

// Opcode 5E.
std::optional<TileInstruction> DecodeProducts(const Vex& vex) {
  if (vex.mod != 3 || vex.r != 0 || vex.b != 0 || vex.vvvv >= 8) return std::nullopt;
  constexpr TileOperation kOfPrefix[] = {
      TileOperation::kProductsUnsignedUnsigned, TileOperation::kProductsUnsignedSigned,
      TileOperation::kProductsSignedUnsigned, TileOperation::kProductsSignedSigned};
  return TileInstruction{.operation = kOfPrefix[vex.prefix],
                         .tile = vex.reg,
                         .first = vex.rm,
                         .second = vex.vvvv,
                         .bytes = kPrefixBytes};
}

}  // namespace

std::optional<TileInstruction> DecodeTileInstruction(const std::uint8_t* code) {
  constexpr std::uint8_t kThreeByteVex = 0xc4;
  constexpr int kMap0F38 = 2;
  if (code[0] != kThreeByteVex) return std::nullopt;
  const Vex vex = ReadVex(code);
  if (vex.map != kMap0F38 || vex.w != 0 || vex.length != 0) return std::nullopt;
  switch (vex.opcode) {
    case 0x49: return DecodeConfig(vex, code);
    case 0x4b: return DecodeMove(vex, code);
    case 0x5e: return DecodeProducts(vex);
    default: return std::nullopt;
  }
}

}  // namespace kvcache::testing
