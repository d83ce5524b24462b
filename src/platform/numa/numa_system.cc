#include "platform/numa/numa_system.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "base/strings.h"
#include "platform/aligned_buffer.h"

#if defined(__linux__)
#include <linux/mempolicy.h>
#include <sched.h>
#endif

namespace kvcache {
namespace {

Status Refused(const char* call, int error) {
  return {StatusCode::kIo, StrCat(call, ": ", std::strerror(error))};
}

#if defined(__linux__)

class LinuxNuma final : public NumaSystem {
 public:
  // Without a policy of its own, the process has none of MPOL_BIND, MPOL_PREFERRED and MPOL_INTERLEAVE. A system
  // that does not answer has set none either, as far as this process can know.
  bool HasPolicy() override {
    int mode = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0) return false;
    return mode != MPOL_DEFAULT && mode != MPOL_LOCAL;
  }

  Status Pin(std::span<const int> processors) override {
    const int count = processors.empty() ? 1 : std::ranges::max(processors) + 1;
    cpu_set_t* const set = CPU_ALLOC(count);
    if (set == nullptr) return Refused("sched_setaffinity", ENOMEM);
    const std::size_t size = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(size, set);
    for (const int processor : processors)
      CPU_SET_S(static_cast<std::size_t>(processor), size, set);
    const int error = sched_setaffinity(0, size, set) == 0 ? 0 : errno;
    CPU_FREE(set);
    return error == 0 ? Status::Ok() : Refused("sched_setaffinity", error);
  }

  int CurrentProcessor() override { return sched_getcpu(); }

  // MPOL_PREFERRED: a node that is full is no reason to run out of memory.
  Status MovePages(std::span<const std::byte> bytes, int node) override {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::uintptr_t begin = (address + page - 1) / page * page;
    const std::uintptr_t end = (address + bytes.size()) / page * page;
    if (begin >= end) return Status::Ok();
    constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
    std::array<unsigned long, 16> mask{};
    const auto bit = static_cast<std::size_t>(node);
    if (bit >= mask.size() * kBits) return Refused("mbind", EINVAL);
    mask[bit / kBits] = 1UL << bit % kBits;
    // The system counts one bit less than it is told.
    const long result = syscall(SYS_mbind, begin, end - begin, MPOL_PREFERRED, mask.data(),
                                mask.size() * kBits + 1, MPOL_MF_MOVE);
    return result == 0 ? Status::Ok() : Refused("mbind", errno);
  }
};

#else

class LinuxNuma final : public NumaSystem {
 public:
  bool HasPolicy() override { return false; }
  Status Pin(std::span<const int> /*processors*/) override { return Refused("pin", ENOSYS); }
  int CurrentProcessor() override { return -1; }
  Status MovePages(std::span<const std::byte> /*bytes*/, int /*node*/) override {
    return Refused("move", ENOSYS);
  }
};

#endif

}  // namespace

NumaSystem& MachineNuma() {
  static LinuxNuma system;
  return system;
}

Status TryToMovePages(NumaSystem& system, int node) {
  constexpr std::size_t kBytes = std::size_t{64} << 10;
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::MakePaged(kBytes));
  memory.data()[0] = std::byte{1};
  return system.MovePages({memory.data(), memory.size_bytes()}, node);
}

}  // namespace kvcache
