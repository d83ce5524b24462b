// Where the time of a scheduler's step goes, by part: an observer for benchmarks and tests. Without one, a mark is a
// load and a branch.
//
//   StepParts parts;              the thread's observer until it is gone
//   scheduler.Step();             its marks: const StepScope scope(StepPart::kCells);
//   parts.seconds(StepPart::kCells)
//
// The time of a scope that begins inside another one counts for the inner scope only. What the clock itself takes is
// measured first and not counted.
//
// Thread safety: an observer sees the marks of the thread that made it.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvcache {

enum class StepPart : std::uint8_t {
  kOutside,   // of all steps
  kRequests,  // which requests live, what they load and draft; statistics
  kChoice,    // the tokens of the pass, and whether the memory suffices
  kCells,     // cells of the tokens, and what each token sees
  kPlans,     // checks and plans of attention, of all layers
  kDelivery,  // what the pass made of each request: prefixes, the drawn token and its way to the request
  kKernels,  // the model's arithmetic, and what looks at whole rows of logits
};
inline constexpr std::size_t kStepParts = 7;

class StepParts {
 public:
  // Observes this thread, instead of any other observer.
  StepParts() {
    std::array<double, 101> reads{};
    for (double& read : reads) {
      const double before = since_;
      since_ = Now();
      read = since_ - before;
    }
    std::nth_element(reads.begin(), reads.begin() + reads.size() / 2, reads.end());
    read_ = reads[reads.size() / 2];
    Of() = this;
    since_ = Now();
  }
  ~StepParts() {
    if (Of() == this) Of() = nullptr;
  }
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  // Returns the thread's observer; null: none.
  static StepParts* Current() { return Of(); }

  // Ends the current part and begins another one. Returns the part that has ended.
  StepPart Enter(StepPart part) {
    const double now = Now();
    seconds_[static_cast<std::size_t>(current_)] += std::max(now - since_ - read_, 0.0);
    since_ = now;
    const StepPart ended = current_;
    current_ = part;
    return ended;
  }
  // Returns the seconds of a part since the last Clear.
  double seconds(StepPart part) const { return seconds_[static_cast<std::size_t>(part)]; }
  void Clear() { seconds_ = {}; }

 private:
  static StepParts*& Of() {
    constinit static thread_local StepParts* observer = nullptr;
    return observer;
  }
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::array<double, kStepParts> seconds_{};
  StepPart current_ = StepPart::kOutside;
  double since_ = 0.0;
  double read_ = 0.0;  // seconds that the clock takes
};

// Counts the time of its life for a part.
class StepScope {
 public:
  explicit StepScope(StepPart part) : parts_(StepParts::Current()) {
    if (parts_ != nullptr) outer_ = parts_->Enter(part);
  }
  ~StepScope() {
    if (parts_ != nullptr) parts_->Enter(outer_);
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  StepParts* const parts_;
  StepPart outer_{};
};

}  // namespace kvcache
