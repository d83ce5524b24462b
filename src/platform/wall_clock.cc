#include "platform/wall_clock.h"

#include <atomic>
#include <chrono>

namespace kvcache {
namespace {

using NsClock = std::int64_t (*)();

std::int64_t MachineNs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::atomic<NsClock> clock_in_use{&MachineNs};

}  // namespace

std::int64_t WallClockNs() {
  return clock_in_use.load()();
}

std::int64_t WallClockSeconds() {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  return WallClockNs() / kNsPerSecond;
}

WallClockForTests::WallClockForTests(std::int64_t (*clock)()) {
  clock_in_use = clock;
}

WallClockForTests::~WallClockForTests() {
  clock_in_use = &MachineNs;
}

}  // namespace kvcache
