// What kernels call of the shim; language/on_shim-inl.h gives these functions the language's form.
//
// Thread safety: called by the threads of a kernel only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda {

// The same for all of a thread's life, so the compiler may call them once.
__attribute__((const)) int Thread();
__attribute__((const)) int Lane();
__attribute__((const)) int Warp();
__attribute__((const)) int BlockX();
__attribute__((const)) int BlockY();
__attribute__((const)) int BlockZ();
__attribute__((const)) int GridX();

void WaitForEarlier();
void AsyncCopy16(void* shared, const void* global);
void AsyncCommit();

namespace shim {

// Where a kernel calls a function that all threads have to reach.
struct Site {
  const char* file;
  int line;
};

struct Fragments {
  std::int32_t d[4];
};

std::byte* SharedBytes(std::size_t needed);
void BlockBarrier(Site site);
void WarpBarrier(Site site);
std::uint32_t ShuffleXor(std::uint32_t value, int mask, Site site);
std::uint32_t Shuffle(std::uint32_t value, int lane, Site site);
std::uint32_t Ballot(bool value, Site site);
// Words are passed by value: an address would keep a kernel's fragments in memory, and each access to
// them would be checked.
Fragments Mma(bool a_is_signed, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, std::int32_t d0,
              std::int32_t d1, std::int32_t d2, std::int32_t d3, Site site);
void AsyncWait(int pending);
// Checks that no kernel has written the bytes: a compiler may move their load before WaitForEarlier.
void CheckConstant(const void* at, std::size_t bytes);

}  // namespace shim
}  // namespace kvcache::cuda
