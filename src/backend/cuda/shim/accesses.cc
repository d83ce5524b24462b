#include "backend/cuda/shim/accesses.h"

#include <algorithm>

#include "backend/cuda/shim/block_runner.h"
#include "backend/cuda/shim/thread_state.h"

extern "C" {
// The program's own code and constants, as the linker names them.
extern const char __executable_start;
extern const char edata;
}

namespace kvcache::cuda::shim {
namespace {

constexpr std::size_t kWordBytes = 4;

struct Access {
  AccessKind kind;
  std::uintptr_t address;
  std::size_t bytes;
  std::uintptr_t place;
};

[[noreturn]] [[gnu::noinline, gnu::cold]] void Fail(const Access& access, Problem problem,
                                                    Fault fault = Fault::kNone, Record other = 0) {
  BlockRunner::Running().Fail({.problem = problem,
                               .kind = access.kind,
                               .address = access.address,
                               .bytes = access.bytes,
                               .fault = fault,
                               .other = other,
                               .place = access.place});
}

template <Memory kMemory, AccessKind kKind>
[[gnu::always_inline]] inline void TouchCell(Cell& cell, const Access& access, Record mine) {
  const Fault fault = kKind == AccessKind::kRead
                          ? Shadow<kMemory>::Read(cell, current.clock, mine)
                          : Shadow<kMemory>::Write(cell, current.clock, mine);
  if (fault != Fault::kNone) [[unlikely]] {
    Fail(access, Problem::kCell, fault, fault == Fault::kReadBefore ? cell.read : cell.write);
  }
}

template <Memory kMemory, AccessKind kKind>
[[gnu::noinline]] void TouchSplitWord(const Space& space, std::size_t word, const Access& access,
                                      Record mine) {
  for (std::size_t i = 0; i < kWordBytes; ++i) {
    TouchCell<kMemory, kKind>(space.single[word * kWordBytes + i], access, mine);
  }
  if (kKind == AccessKind::kWrite) space.words[word] = {mine, 0};
}

template <Memory kMemory, AccessKind kKind>
[[gnu::always_inline]] inline void TouchWord(const Space& space, std::size_t word,
                                             const Access& access, Record mine) {
  Cell& cell = space.words[word];
  if (cell.write == kSplit) [[unlikely]] {
    TouchSplitWord<kMemory, kKind>(space, word, access, mine);
  } else {
    TouchCell<kMemory, kKind>(cell, access, mine);
  }
}

template <Memory kMemory, AccessKind kKind>
[[gnu::always_inline]] inline void TouchByte(const Space& space, std::size_t offset,
                                             const Access& access, Record mine) {
  Cell& word = space.words[offset / kWordBytes];
  if (word.write != kSplit) {
    std::fill_n(space.single + offset / kWordBytes * kWordBytes, kWordBytes, word);
    word.write = kSplit;
  }
  TouchCell<kMemory, kKind>(space.single[offset], access, mine);
}

// `bytes` bytes at `offset`; a number that the compiler knows, at a multiple of it, costs least.
template <Memory kMemory, AccessKind kKind>
[[gnu::always_inline]] inline void Touch(const Space& space, std::size_t offset,
                                         const Access& access) {
  const Record mine = current.clock.mine | PackPlace(access.place);
  if (__builtin_constant_p(access.bytes) && access.bytes % kWordBytes == 0) {
    for (std::size_t i = 0; i < access.bytes / kWordBytes; ++i) {
      TouchWord<kMemory, kKind>(space, offset / kWordBytes + i, access, mine);
    }
    return;
  }
  const std::size_t end = offset + access.bytes;
  while (offset < end) {
    if (offset % kWordBytes == 0 && end - offset >= kWordBytes) {
      TouchWord<kMemory, kKind>(space, offset / kWordBytes, access, mine);
      offset += kWordBytes;
    } else {
      TouchByte<kMemory, kKind>(space, offset, access, mine);
      ++offset;
    }
  }
}

bool InPieces(std::size_t offset, std::size_t bytes) {
  constexpr std::size_t kPiece = DeviceMemory::kPieceBytes;
  while (true) {
    const std::size_t in_piece = offset % kPiece;
    const std::size_t size = std::min(bytes, kPiece - in_piece);
    if (in_piece + size > current.pieces[offset / kPiece]) return false;
    if (size == bytes) return true;
    offset += size;
    bytes -= size;
  }
}

// Memory that is neither the thread's stack nor the device's: constants may be read.
[[gnu::noinline]] void CheckElsewhere(const Access& access) {
  const auto in = [&](std::uintptr_t low, std::size_t bytes) {
    return access.address - low < bytes && access.bytes <= bytes - (access.address - low);
  };
  const auto program = reinterpret_cast<std::uintptr_t>(&__executable_start);
  const auto program_end = reinterpret_cast<std::uintptr_t>(&edata);
  if (access.kind == AccessKind::kRead &&
      (in(current.args_low, current.args_bytes) || in(program, program_end - program))) {
    return;
  }
  Fail(access, Problem::kOutside);
}

// Returns whether a kernel has written some of the bytes at an offset of global memory.
bool KernelsWrote(std::size_t offset, std::size_t bytes) {
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    const Record word = current.global.words[i / kWordBytes].write;
    const Record write = word == kSplit ? current.global.single[i].write : word;
    if (StampOf(write) != 0) return true;
  }
  return false;
}

// Before WaitForEarlier a thread may only read what no kernel has written.
[[gnu::noinline]] void CheckEarly(const Access& access, std::size_t offset) {
  if (access.kind == AccessKind::kWrite || KernelsWrote(offset, access.bytes)) {
    Fail(access, Problem::kEarly);
  }
}

// `kBytes` bytes at a multiple of kBytes, or if that is 0, `bytes` bytes anywhere.
template <AccessKind kKind, std::size_t kBytes = 0>
[[gnu::always_inline]] inline void Check(std::uintptr_t address, std::size_t bytes,
                                         std::uintptr_t place) {
  const Access access = {kKind, address, kBytes != 0 ? kBytes : bytes, place};
  const std::size_t in_shared = address - current.shared.low;
  if (in_shared < current.shared.bytes) {
    if (access.bytes > current.shared.bytes - in_shared) Fail(access, Problem::kOutside);
    return Touch<Memory::kShared, kKind>(current.shared, in_shared, access);
  }
  const std::size_t in_global = address - current.global.low;
  if (in_global < current.global.bytes) {
    // An aligned access lies in one piece.
    constexpr std::size_t kPiece = DeviceMemory::kPieceBytes;
    const bool in_pieces = kBytes != 0
                               ? in_global % kPiece + kBytes <= current.pieces[in_global / kPiece]
                               : InPieces(in_global, bytes);
    if (!in_pieces) Fail(access, Problem::kOutside);
    if (!current.waited) [[unlikely]]
      CheckEarly(access, in_global);
    return Touch<Memory::kGlobal, kKind>(current.global, in_global, access);
  }
  CheckElsewhere(access);
}

bool OwnStack(std::uintptr_t address) {
  return address - current.stack_low < current.stack_bytes;
}

// `kBytes` bytes at a multiple of kBytes.
template <AccessKind kKind, std::size_t kBytes>
[[gnu::always_inline]] inline void CheckAligned(void* at, void* place) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (OwnStack(address)) [[likely]]
    return;
  if (address % kBytes != 0) {
    Fail({kKind, address, kBytes, reinterpret_cast<std::uintptr_t>(place)}, Problem::kMisaligned);
  }
  Check<kKind, kBytes>(address, kBytes, reinterpret_cast<std::uintptr_t>(place));
}

}  // namespace

void CheckRead(std::uintptr_t address, std::size_t bytes, std::uintptr_t place) {
  if (bytes > 0 && !OwnStack(address)) Check<AccessKind::kRead>(address, bytes, place);
}

void CheckWrite(std::uintptr_t address, std::size_t bytes, std::uintptr_t place) {
  if (bytes > 0 && !OwnStack(address)) Check<AccessKind::kWrite>(address, bytes, place);
}

void CheckConstant(const void* at, std::size_t bytes) {
  if (current.stack_bytes == kEverything) return;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::size_t offset = address - current.global.low;
  // The load itself is checked too: for its bounds, and more strictly before WaitForEarlier.
  if (offset >= current.global.bytes || address % bytes != 0 || !current.waited) return;
  if (!KernelsWrote(offset, bytes)) return;
  Fail({AccessKind::kRead, address, bytes,
        reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))},
       Problem::kConstant);
}

void CheckCopyBegins(std::uintptr_t shared, std::uintptr_t global, std::uintptr_t place) {
  if (current.stack_bytes == kEverything) return;
  const Access from = {AccessKind::kRead, global, 16, place};
  const Access to = {AccessKind::kWrite, shared, 16, place};
  if (global - current.global.low >= current.global.bytes) Fail(from, Problem::kOutside);
  if (shared - current.shared.low >= current.shared.bytes) Fail(to, Problem::kOutside);
  if (global % 16 != 0) Fail(from, Problem::kMisaligned);
  if (shared % 16 != 0) Fail(to, Problem::kMisaligned);
  Check<AccessKind::kRead>(global, 16, place);
  Check<AccessKind::kWrite>(shared, 16, place);
  const std::size_t word = (shared - current.shared.low) / kWordBytes;
  for (std::size_t i = 0; i < 4; ++i) current.shared.words[word + i].write |= kPendingWrite;
}

void CopyLands(std::uintptr_t shared, std::uintptr_t global, std::uintptr_t place) {
  if (current.stack_bytes == kEverything) return;
  Check<AccessKind::kRead>(global, 16, place);
  const std::size_t word = (shared - current.shared.low) / kWordBytes;
  const Record mine = current.clock.mine | PackPlace(place);
  for (std::size_t i = 0; i < 4; ++i) current.shared.words[word + i] = {mine, 0};
}

}  // namespace kvcache::cuda::shim

// The functions that the compiler calls before each access to memory of a kernel (-fsanitize=thread). It
// calls those with a size for aligned accesses only.
#pragma GCC diagnostic ignored "-Wmissing-declarations"

#define KVCACHE_SHIM_ACCESS_(bytes)                                           \
  void __tsan_read##bytes(void* at) {                                         \
    using namespace kvcache::cuda::shim;                                      \
    CheckAligned<AccessKind::kRead, bytes>(at, __builtin_return_address(0));  \
  }                                                                           \
  void __tsan_write##bytes(void* at) {                                        \
    using namespace kvcache::cuda::shim;                                      \
    CheckAligned<AccessKind::kWrite, bytes>(at, __builtin_return_address(0)); \
  }

extern "C" {

void __tsan_init() {}

KVCACHE_SHIM_ACCESS_(1)
KVCACHE_SHIM_ACCESS_(2)
KVCACHE_SHIM_ACCESS_(4)
KVCACHE_SHIM_ACCESS_(8)
KVCACHE_SHIM_ACCESS_(16)

void __tsan_read_range(void* at, std::size_t bytes) {
  kvcache::cuda::shim::CheckRead(reinterpret_cast<std::uintptr_t>(at), bytes,
                                 reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
}
void __tsan_write_range(void* at, std::size_t bytes) {
  kvcache::cuda::shim::CheckWrite(reinterpret_cast<std::uintptr_t>(at), bytes,
                                  reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
}

void* kvcache_shim_copy(void* to, const void* from, std::size_t bytes) noexcept {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  kvcache::cuda::shim::CheckRead(reinterpret_cast<std::uintptr_t>(from), bytes, place);
  kvcache::cuda::shim::CheckWrite(reinterpret_cast<std::uintptr_t>(to), bytes, place);
  return __builtin_memmove(to, from, bytes);
}
void* kvcache_shim_fill(void* to, int value, std::size_t bytes) noexcept {
  kvcache::cuda::shim::CheckWrite(reinterpret_cast<std::uintptr_t>(to), bytes,
                                  reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
  return __builtin_memset(to, value, bytes);
}

// What the compiler calls where indices, alignments and shifts are wrong (-fsanitize=bounds,alignment,shift,…).
// Its data begin with the place in the source.
struct UbsanSource {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
};

#define KVCACHE_SHIM_CHECK_(name, what)                                                          \
  void __ubsan_handle_##name(UbsanSource* at, std::uintptr_t /*value*/) {                        \
    using namespace kvcache::cuda::shim;                                                         \
    if (current.stack_bytes == kEverything) return;                                              \
    BlockRunner::Running().Fail({.site = {at->file, static_cast<int>(at->line)}, .text = what}); \
  }

KVCACHE_SHIM_CHECK_(out_of_bounds, "an index is outside of its array")
KVCACHE_SHIM_CHECK_(type_mismatch_v1, "an access is not aligned for its type")
KVCACHE_SHIM_CHECK_(shift_out_of_bounds, "a shift by more bits than there are, or by less than 0")
KVCACHE_SHIM_CHECK_(divrem_overflow, "a division by 0, or one that overflows")

}  // extern "C"
