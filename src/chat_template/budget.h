// How much a rendering may do. A template comes from a file that a stranger made: each step and
// each byte it makes is taken from one account, which bounds time and memory together (all that
// is in memory was made at some point).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "kvcache/status.h"

namespace kvcache::jinja {

class Budget {
 public:
  explicit Budget(std::uint64_t units) : units_(units), left_(units) {}

  // Takes `units`: a byte that is made costs one, a step kStep. kUnsupported once it is used up.
  Status Spend(std::uint64_t units) {
    if (units <= left_) {
      left_ -= units;
      return Status::Ok();
    }
    left_ = 0;
    return Refusal();
  }

  std::uint64_t spent() const { return units_ - left_; }

  static constexpr std::uint64_t kStep = 8;
  static constexpr std::uint64_t kItem = 64;  // of a list or dict

 private:
  Status Refusal() const;

  std::uint64_t units_;
  std::uint64_t left_;
};

}  // namespace kvcache::jinja
