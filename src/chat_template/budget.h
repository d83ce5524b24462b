// Limits the work of a rendering. A template comes from an untrusted file. Each step and each byte
// that it produces is charged to one budget, which bounds time and memory together, because all
// memory was produced at some point.
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
