// What the shim remembers of each byte of memory: who wrote it last, and who has read it since.
//
// The shim runs one thread at a time, and counts barriers: a stamp is the number of the last barrier (or start of
// a block or of a launch) that the accessing thread's warp has passed. A later access is ordered behind a
// record if a barrier lies between them, and stamps tell this without a list of barriers.
//
// Cells stand for words of 4 bytes. A word in which threads accessed single bytes is split: it has a cell
// for each byte then, until a thread writes all of it.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda::shim {

// A record: stamp (32 bits), thread in the block (10), the accessing instruction (20), state (2).
using Record = std::uint64_t;

constexpr int kThreadShift = 22;
constexpr int kPlaceShift = 2;
constexpr std::uint64_t kPlaces = 1U << 20;
constexpr Record kStateMask = 3;
// States of a write.
constexpr Record kPendingWrite = 1;  // a copy in the background that has not landed
constexpr Record kNoWrite = 2;       // nobody has written the bytes
// States of a read: who else has read since the write.
constexpr Record kReadByLanes = 1;   // lanes of the same warp, with the same stamp
constexpr Record kReadByWarps = 2;   // other warps of the block
constexpr Record kReadByBlocks = 3;  // other blocks of the launch

constexpr std::uint32_t StampOf(Record record) {
  return static_cast<std::uint32_t>(record >> 32);
}
constexpr int ThreadOf(Record record) {
  return static_cast<int>(record >> kThreadShift & 1023);
}
constexpr std::uint64_t PlaceOf(Record record) {
  return record >> kPlaceShift & (kPlaces - 1);
}

struct Cell {
  Record write;
  Record read;
};

// The write of a word that is split.
constexpr Record kSplit = ~Record{0};

// Where the running thread is among the barriers.
struct Clock {
  std::uint32_t launch = 0;   // the stamp at the start of the launch
  std::uint32_t block = 0;    // … of the block
  std::uint32_t barrier = 0;  // … behind the block's last barrier
  std::uint32_t warp = 0;     // … behind the warp's last barrier
  Record mine = 0;            // warp's stamp and the thread
};

enum class Fault : std::uint8_t {
  kNone,
  kWriteBefore,  // a race with the cell's write
  kReadBefore,   // a race with the cell's read
  kUnwritten,
  kPending,
};

// The rules for one cell. Memory::kShared: what other blocks did to it does not count, and it starts as unwritten.
enum class Memory : std::uint8_t { kGlobal, kShared };

template <Memory kMemory>
class Shadow {
 public:
  // Both return what is wrong, and record the access if nothing is. `mine` is clock.mine with the place.
  static Fault Read(Cell& cell, const Clock& clock, Record mine) {
    const Record write = cell.write;
    const Fault fault = CheckWrite(write, clock);
    if (fault != Fault::kNone) return fault;
    if (kMemory == Memory::kShared ? StampOf(write) < clock.block : (write & kNoWrite) != 0) {
      return Fault::kUnwritten;
    }
    const Record read = cell.read;
    if ((read ^ mine) >> kThreadShift != 0) cell.read = Join(read, clock, mine);
    return Fault::kNone;
  }

  static Fault Write(Cell& cell, const Clock& clock, Record mine) {
    const Fault fault = CheckWrite(cell.write, clock);
    if (fault != Fault::kNone) return fault;
    if (cell.read != 0 && !Ordered(cell.read, clock)) return Fault::kReadBefore;
    cell.write = mine;
    cell.read = 0;
    return Fault::kNone;
  }

 private:
  static std::uint32_t First(const Clock& clock) {
    return kMemory == Memory::kShared ? clock.block : clock.launch;
  }

  static Fault CheckWrite(Record write, const Clock& clock) {
    const std::uint32_t stamp = StampOf(write);
    if (stamp < First(clock)) return Fault::kNone;
    if (stamp < clock.block) return Fault::kWriteBefore;
    if ((write & kPendingWrite) != 0) return Fault::kPending;
    if (stamp < clock.barrier || (write ^ clock.mine) >> kThreadShift == 0) return Fault::kNone;
    return SeesThread(write, clock) ? Fault::kNone : Fault::kWriteBefore;
  }

  // Whether an access behind the block's last barrier is ordered before the running thread.
  static bool SeesThread(Record record, const Clock& clock) {
    const int thread = ThreadOf(record);
    const int mine = ThreadOf(clock.mine);
    return thread == mine || (thread / 32 == mine / 32 && StampOf(record) != clock.warp);
  }

  // Whether all reads that `read` stands for are ordered before the running thread.
  static bool Ordered(Record read, const Clock& clock) {
    const std::uint32_t stamp = StampOf(read);
    if (stamp < First(clock)) return true;
    const Record state = read & kStateMask;
    if (stamp < clock.block || state == kReadByBlocks) return false;
    if (stamp < clock.barrier) return true;
    if (state == kReadByWarps) return false;
    if (state == kReadByLanes) {
      return ThreadOf(read) / 32 == ThreadOf(clock.mine) / 32 && stamp != clock.warp;
    }
    return SeesThread(read, clock);
  }

  // The record of `read` and a read of the running thread.
  static Record Join(Record read, const Clock& clock, Record mine) {
    const std::uint32_t stamp = StampOf(read);
    if (stamp < First(clock)) return mine;
    if (stamp < clock.block) return mine | kReadByBlocks;
    const Record state = read & kStateMask;
    if (state == kReadByBlocks) return read;
    if (stamp < clock.barrier) return mine;
    if (state == kReadByWarps) return read;
    if (ThreadOf(read) / 32 != ThreadOf(mine) / 32) return (read & ~kStateMask) | kReadByWarps;
    // An older read of this warp is before whatever this read is before.
    if (stamp != clock.warp) return mine;
    return read | kReadByLanes;
  }
};

}  // namespace kvcache::cuda::shim
