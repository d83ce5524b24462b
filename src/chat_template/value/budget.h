// Limits the work of a rendering. A template comes from an untrusted file. Each step and each byte
// that it produces is charged to one budget. This bounds time and memory together, because every
// byte in memory was produced and charged.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "kvcache/status.h"

namespace kvcache::jinja {

class Budget {
 public:
  explicit Budget(std::uint64_t units) : units_(units), left_(units) {}

  // Charges `units`: a byte that is produced costs 1, a step kStep. Returns kUnsupported if fewer
  // are left; then the budget is empty.
  Status Spend(std::uint64_t units) {
    if (units <= left_) {
      left_ -= units;
      return Status::Ok();
    }
    left_ = 0;
    return Exhausted();
  }

  std::uint64_t spent() const { return units_ - left_; }

  static constexpr std::uint64_t kStep = 8;
  static constexpr std::uint64_t kItem = 64;  // of a list or dict

 private:
  Status Exhausted() const;

  std::uint64_t units_;
  std::uint64_t left_;
};

}  // namespace kvcache::jinja
