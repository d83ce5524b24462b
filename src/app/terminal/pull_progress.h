// Shows what a pull does, on standard error: on a terminal a line with a bar, the speed and the time
// that is left; else a line for each new state, and one now and then while bytes come.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "app/terminal/terminal.h"
#include "pull/pull.h"

namespace kvcache::app {

class PullProgress {
 public:
  void Show(const pull::PullState& state);
  // Ends the line on the terminal.
  void Clear() { progress_.Clear(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Begin(const pull::PullState& state);
  void Measure(const pull::PullState& state);
  std::string LineOf(const pull::PullState& state) const;

  Progress progress_;
  std::string status_;  // of the last state
  Clock::time_point shown_{};
  Clock::time_point measured_{};
  std::uint64_t measured_bytes_ = 0;
  double speed_ = 0.0;  // bytes a second; 0: not known yet
};

}  // namespace kvcache::app
