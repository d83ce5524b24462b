#include "support/internal/tile_emulator.h"

#include <algorithm>

#include "backend/cpu/cpu_tiles.h"
#include "kvcache/cpu_backend.h"

#if defined(__x86_64__) && defined(__linux__)
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <optional>

#include <ucontext.h>
#include <unistd.h>

#include "support/internal/tile_instruction.h"
#include "support/internal/tile_unit.h"
#endif

namespace kvcache::testing {

#if defined(__x86_64__) && defined(__linux__)
namespace {

thread_local constinit TileUnit tiles;
std::atomic<std::int64_t> emulated = 0;

using Registers = decltype(ucontext_t().uc_mcontext.gregs);

std::int64_t ValueOf(const Registers& registers, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return registers[kOrder[number]];
}

// Where an instruction reads or writes: row r of a tile is at `first` + r × `stride`.
struct Place {
  std::byte* first;
  std::int64_t stride;
};

Place PlaceOf(const TileInstruction& instruction, const Registers& registers) {
  const TileAddress& address = instruction.address;
  std::int64_t first = address.displacement;
  if (address.base == TileAddress::kNextInstruction) {
    first += registers[REG_RIP] + instruction.bytes;
  } else if (address.base != TileAddress::kNone) {
    first += ValueOf(registers, address.base);
  }
  const std::int64_t index =
      address.index == TileAddress::kNone ? 0 : ValueOf(registers, address.index) * address.scale;
  return {reinterpret_cast<std::byte*>(first), index};
}

TileUnit::Fault Run(const TileInstruction& instruction, const Place& place) {
  const auto add = [&](ByteSigns signs) {
    return tiles.AddProducts(instruction.tile, instruction.first, instruction.second, signs);
  };
  switch (instruction.operation) {
    case TileOperation::kLoadConfig: return tiles.LoadConfig(place.first + place.stride);
    case TileOperation::kStoreConfig: tiles.StoreConfig(place.first + place.stride); return nullptr;
    case TileOperation::kRelease: tiles.Release(); return nullptr;
    case TileOperation::kZero: return tiles.Zero(instruction.tile);
    case TileOperation::kLoad: return tiles.Load(instruction.tile, place.first, place.stride);
    case TileOperation::kStore: return tiles.Store(instruction.tile, place.first, place.stride);
    case TileOperation::kProductsSignedSigned: return add({.first = true, .second = true});
    case TileOperation::kProductsSignedUnsigned: return add({.first = true, .second = false});
    case TileOperation::kProductsUnsignedSigned: return add({.first = false, .second = true});
    case TileOperation::kProductsUnsignedUnsigned: return add({});
  }
  return "unknown operation";
}

void Print(const char* text) {
  static_cast<void>(!write(STDERR_FILENO, text, std::strlen(text)));
}

// Does what the instructions at the program counter would, until one is not for tiles.
TileUnit::Fault RunAll(Registers& registers) {
  const auto next = [&] {
    return DecodeTileInstruction(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]));
  };
  std::optional<TileInstruction> instruction = next();
  if (!instruction) return "not an instruction of tiles";
  for (; instruction; instruction = next()) {
    if (const auto fault = Run(*instruction, PlaceOf(*instruction, registers))) return fault;
    registers[REG_RIP] += instruction->bytes;
    emulated.fetch_add(1, std::memory_order_relaxed);
  }
  return nullptr;
}

void OnUnknownInstruction(int, siginfo_t*, void* context) {
  const TileUnit::Fault fault = RunAll(static_cast<ucontext_t*>(context)->uc_mcontext.gregs);
  if (fault == nullptr) return;
  Print("tile emulator: ");
  Print(fault);
  Print("\n");
  signal(SIGILL, SIG_DFL);  // the instruction is tried again, and ends the process
}

}  // namespace

bool EmulateTiles() {
  if (!cpu::OfferEmulatedTiles()) return false;
  if (cpu::MachineHasTiles()) return true;
  struct sigaction action {};
  action.sa_sigaction = OnUnknownInstruction;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

std::int64_t EmulatedTileInstructions() {
  return emulated;
}
#else
bool EmulateTiles() {
  return false;
}

std::int64_t EmulatedTileInstructions() {
  return 0;
}
#endif

std::vector<std::string> TestedTargets() {
  std::vector<std::string> names = CpuTargetNames();
  if (EmulateTiles() && std::ranges::find(names, "AMX") == names.end()) names.push_back("AMX");
  return names;
}

}  // namespace kvcache::testing
