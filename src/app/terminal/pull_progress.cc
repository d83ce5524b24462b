#include "app/terminal/pull_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/strings.h"

namespace kvcache::app {
namespace {

constexpr auto kTerminalPause = std::chrono::milliseconds(200);
constexpr auto kLinePause = std::chrono::seconds(10);
constexpr auto kMeasurePause = std::chrono::milliseconds(500);
constexpr double kNewShare = 0.2;  // of the last measurement in the speed
constexpr int kBarCells = 20;

std::string TimeText(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(std::min(seconds, 1e7)));
  if (whole >= 3600) return StrCat(whole / 3600, " h ", whole % 3600 / 60, " min");
  if (whole >= 60) return StrCat(whole / 60, " min ", whole % 60, " s");
  return StrCat(whole, " s");
}

std::string Bar(std::int64_t percent) {
  std::string bar = "[";
  for (int i = 0; i < kBarCells; ++i) bar += i * 100 < percent * kBarCells ? '#' : '.';
  return bar + "]";
}

}  // namespace

void PullProgress::Begin(const pull::PullState& state) {
  status_ = state.status;
  measured_ = Clock::now();
  measured_bytes_ = state.completed;
  speed_ = 0.0;
}

void PullProgress::Measure(const pull::PullState& state) {
  const auto now = Clock::now();
  if (now - measured_ < kMeasurePause || state.completed < measured_bytes_) return;
  const double seconds = std::chrono::duration<double>(now - measured_).count();
  const double last = static_cast<double>(state.completed - measured_bytes_) / seconds;
  speed_ = speed_ == 0.0 ? last : speed_ + kNewShare * (last - speed_);
  measured_ = now;
  measured_bytes_ = state.completed;
}

std::string PullProgress::LineOf(const pull::PullState& state) const {
  if (state.total == 0) return state.status;
  const auto bytes = [](std::uint64_t n) { return HumanBytes(static_cast<std::int64_t>(n)); };
  const auto percent = static_cast<std::int64_t>(100.0 * static_cast<double>(state.completed) /
                                                 static_cast<double>(state.total));
  std::string line = StrCat(state.status, "  ", Bar(percent), " ", percent, "%  ",
                            bytes(state.completed), " of ", bytes(state.total));
  if (speed_ <= 0.0) return line;
  const double left = static_cast<double>(state.total - std::min(state.completed, state.total));
  return line + StrCat("  ", HumanBytes(static_cast<std::int64_t>(speed_)), "/s  ",
                       TimeText(left / speed_), " left");
}

void PullProgress::Show(const pull::PullState& state) {
  const bool is_new = state.status != status_;
  if (is_new) Begin(state);
  Measure(state);
  const auto now = Clock::now();
  const bool is_terminal = StderrIsTerminal();
  if (!is_new && now - shown_ < (is_terminal ? Clock::duration(kTerminalPause) : kLinePause))
    return;
  shown_ = now;
  const std::string line = OneLine(LineOf(state));
  if (is_terminal) return progress_.Show(line);
  (void)std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace kvcache::app
