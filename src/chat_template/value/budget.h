// Limits the work and the memory of a rendering. A template comes from an untrusted file.
//
// Work: each step and each byte that it produces is charged in units. A rendering may always spend
// `units`; so prompts of usual length never depend on the clock. After that it may continue until
// `seconds` have passed. Some published templates compare each message with each other one, as
// Python does, too; no limit that is proportional to the input lets them finish.
//
// Memory: texts, lists and dicts hold a charge (MemoryCharge) as long as they live.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "kvcache/status.h"

namespace kvcache::jinja {

struct Limits {
  std::uint64_t units = 0;
  double seconds = 0.0;
  std::uint64_t memory_bytes = 0;
};

class Budget {
 public:
  explicit Budget(const Limits& limits)
      : limits_(limits), left_(limits.units), memory_left_(limits.memory_bytes) {}

  // Charges `units`: a byte that is produced costs 1, a step kStep. Returns kUnsupported if fewer
  // are left and the time is over, or if one step costs more than all memory.
  Status Spend(std::uint64_t units) {
    if (units <= left_) {
      left_ -= units;
      return Status::Ok();
    }
    return Extend(units);
  }

  // Returns kUnsupported if a step needs more memory than is left. Charges nothing.
  Status Fits(std::uint64_t bytes) const {
    return bytes <= memory_left_ ? Status::Ok() : OutOfMemory();
  }

  std::uint64_t spent() const { return granted_ + limits_.units - left_; }

  static constexpr std::uint64_t kStep = 8;
  static constexpr std::uint64_t kItem = 64;  // of a list or dict

 private:
  friend class MemoryCharge;

  // Grants more units while there is time, and charges `units`.
  Status Extend(std::uint64_t units);
  Status Exhausted() const;
  Status OutOfMemory() const;

  const Limits limits_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::uint64_t left_;
  std::uint64_t granted_ = 0;  // units beyond limits_.units
  std::uint64_t memory_left_;
};

// The memory that a value holds. Its destructor returns it to the budget, which must outlive it.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCharge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;
  ~MemoryCharge() {
    if (bytes_ != 0) budget_->memory_left_ += bytes_;
  }

  // Raises the charge to `bytes` in all. A charge of another budget stays as it is. Returns
  // kUnsupported if there is less memory.
  Status Hold(std::uint64_t bytes, Budget& budget) {
    if (budget_ == nullptr) budget_ = &budget;
    if (budget_ != &budget || bytes <= bytes_) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(budget.Fits(bytes - bytes_));
    budget.memory_left_ -= bytes - bytes_;
    bytes_ = bytes;
    return Status::Ok();
  }

  // Makes this a charge of no budget, forever: for values that several renderings share.
  // REQUIRES: Hold was not called.
  void Fix() { budget_ = &NoBudget(); }

  bool IsOf(const Budget& budget) const { return budget_ == &budget; }

 private:
  static Budget& NoBudget();

  Budget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvcache::jinja
