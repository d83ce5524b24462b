// What a kernel did wrong, and its text.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/shadow.h"

namespace kvcache::cuda::shim {

enum class AccessKind : std::uint8_t { kRead, kWrite };

enum class Problem : std::uint8_t {
  kOutside,     // of all memory that the thread may touch
  kMisaligned,  // the address is no multiple of the size
  kEarly,       // earlier launches may write there, or read
  kConstant,    // a kernel has written what LoadConstant reads
  kCell,        // as `fault` says
  kOther,       // as `text` says
};

// What stopped a launch. The runner fills in what comes after `text`.
struct Report {
  Problem problem = Problem::kOther;
  AccessKind kind = AccessKind::kRead;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  Fault fault = Fault::kNone;
  Record other = 0;          // the record of the other access of a race
  std::uintptr_t place = 0;  // the instruction behind the access, or 0
  Site site{nullptr, 0};     // of a call
  std::string text{};

  int thread = -1;  // -1: the error is not one thread's
  int block[3] = {0, 0, 0};
  std::string where{};       // what `address` is
  bool other_block = false;  // whether the other access is another block's
};

// "block (0, 0, 0), thread 5 (warp 0, lane 5) at src/…/x.cu:12 reads 4 bytes at offset 8 of allocation 1
// (8 bytes): out of bounds".
std::string TextOf(const Report& report);

// "thread 37 (warp 1, lane 5)".
std::string ThreadText(int thread);
// "src/backend/cuda/x.cu:12".
std::string SiteText(Site site);

// Where the code of kernels begins; set before the first launch.
inline constinit std::uintptr_t kernel_text = 0;

// The place of an instruction in a record: exact enough to find its source line again.
inline Record PackPlace(std::uintptr_t place) {
  const std::uintptr_t packed = (place - kernel_text) / 4;
  return packed < kPlaces ? packed << kPlaceShift : 0;
}

}  // namespace kvcache::cuda::shim
