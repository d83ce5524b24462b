#include "engine/scheduler/pass/prefill_pace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace kvcache {
namespace {

constexpr double kNewest = 0.5;  // weight of the last measurement
constexpr double kMinRatio = 1.0 / 3.0;
constexpr double kMaxRatio = 3.0;   // measured by expected: with kNewest, a time doubles at most
constexpr double kMaxGrowth = 1.5;  // of a chunk
constexpr double kFirstExcess = 0.05;
constexpr double kNewestExcess = 0.25;
constexpr double kMargin = 6.0;       // times the excess
constexpr int kRefreshSame = 32;      // passes with prompts between two without
constexpr int kRefreshOther = 8;      // the same, if there are many more rows or many fewer
constexpr int kRefreshSoon = 2;       // the same, if the last time without was not the expected one
constexpr double kSteady = 1.5;       // times the expected time, or by it
constexpr double kMinSeconds = 1e-6;  // of a pass; a coarse clock may show none

}  // namespace

std::size_t PrefillWork::OctaveOf(Position depth) {
  const auto octaves = static_cast<std::uint32_t>(std::max<Position>(depth, 0) / kFirstOctave);
  return std::min<std::size_t>(std::bit_width(octaves), kOctaves - 1);
}

void PrefillWork::Add(Position depth, Position count) {
  tokens_ += count;
  for (std::size_t octave = OctaveOf(depth); count > 0; ++octave) {
    const Position here = octave + 1 < kOctaves ? std::min(count, EndOf(octave) - depth) : count;
    of_octave_[octave] += here;
    depth += here;
    count -= here;
  }
}

PrefillPace::PrefillPace(double step_seconds, Position max_tokens)
    : step_seconds_(step_seconds),
      min_token_seconds_(step_seconds / (kMaxGrowth * max_tokens)),
      excess_(kFirstExcess) {}

void PrefillPace::Count(int rows, const PrefillWork& work, double seconds) {
  prompt_passes_ += work.tokens() > 0 ? 1 : 0;
  if (rows < 1) return;
  seconds = std::max(seconds, kMinSeconds);
  if (work.tokens() == 0) return CountRows(rows, seconds);
  ++passes_since_;
  CountAdded(work, std::max(seconds - RowSeconds(rows), 0.0));
  last_tokens_ = work.tokens();
}

bool PrefillPace::MeasuresRows(int rows) const {
  if (rows < 1) return false;
  const bool other = rows > 2 * last_rows_ || 2 * rows < last_rows_;
  const int refresh = !rows_are_steady_ ? kRefreshSoon : other ? kRefreshOther : kRefreshSame;
  return !costs_of_rows_.known() || passes_since_ >= refresh;
}

double PrefillPace::RowSeconds(int rows) const {
  return costs_of_rows_.known() ? pace_of_rows_ * costs_of_rows_.Seconds(rows) : 0.0;
}

// PassCosts changes by little with each pass. What it lacks is in the pace. A pass that was faster than expected was not
// disturbed, so its time is taken as it is.
void PrefillPace::CountRows(int rows, double seconds) {
  if (costs_of_rows_.known()) {
    const double usual = RowSeconds(rows);
    const double ratio = std::min(seconds / usual, kMaxRatio);
    rows_are_steady_ = ratio < kSteady && ratio > 1.0 / kSteady;
    costs_of_rows_.Count(rows, seconds);
    const double weight = ratio < 1.0 ? 1.0 : kNewest;
    pace_of_rows_ = usual * (1.0 + weight * (ratio - 1.0)) / costs_of_rows_.Seconds(rows);
  } else {
    costs_of_rows_.Count(rows, seconds);
  }
  last_rows_ = rows;
  passes_since_ = 0;
}

double PrefillPace::TokenSeconds(std::size_t octave) const {
  if (token_seconds_[octave] > 0.0) return token_seconds_[octave];
  double seconds = 0.0;
  for (std::size_t above = octave + 1; above < token_seconds_.size() && seconds == 0.0; ++above) {
    seconds = token_seconds_[above];
  }
  for (std::size_t below = octave; below-- > 0;) {
    if (token_seconds_[below] == 0.0) continue;
    const double doubled = std::ldexp(token_seconds_[below], static_cast<int>(octave - below));
    return seconds > 0.0 ? std::min(seconds, doubled) : doubled;
  }
  return seconds;
}

double PrefillPace::AddedSeconds(const PrefillWork& work) const {
  double seconds = 0.0;
  for (std::size_t octave = 0; octave < PrefillWork::kOctaves; ++octave) {
    if (work.tokens(octave) > 0) seconds += work.tokens(octave) * TokenSeconds(octave);
  }
  return seconds;
}

// Each octave's time takes what it has of the difference (a step along the normalized gradient).
void PrefillPace::CountAdded(const PrefillWork& work, double seconds) {
  double expected = AddedSeconds(work);
  if (expected == 0.0) {  // the first one of all: the next has at most half as many tokens again
    const double each = std::max(seconds, step_seconds_ / kMaxGrowth) / work.tokens();
    for (std::size_t octave = 0; octave < PrefillWork::kOctaves; ++octave) {
      if (work.tokens(octave) > 0) token_seconds_[octave] = each;
    }
    return;
  }
  const double ratio = std::clamp(seconds / expected, kMinRatio, kMaxRatio);
  excess_ += kNewestExcess * (std::max(ratio - 1.0, 0.0) - excess_);
  std::array<double, PrefillWork::kOctaves> parts{};
  double squares = 0.0;
  for (std::size_t octave = 0; octave < parts.size(); ++octave) {
    if (work.tokens(octave) == 0) continue;
    parts[octave] = work.tokens(octave) * TokenSeconds(octave) / expected;
    squares += parts[octave] * parts[octave];
  }
  for (std::size_t octave = parts.size(); octave-- > 0;) {
    if (parts[octave] == 0.0) continue;
    const double change = 1.0 + kNewest * (ratio - 1.0) * parts[octave] / squares;
    token_seconds_[octave] = std::max(TokenSeconds(octave) * change, min_token_seconds_);
  }
}

Position PrefillPace::Fit(const PrefillWork& work, Position depth, Position max) const {
  double seconds = step_seconds_ / (1.0 + kMargin * excess_) - AddedSeconds(work);
  max = std::min(max, static_cast<Position>(kMaxGrowth * last_tokens()) - work.tokens());
  Position tokens = 0;
  for (std::size_t octave = PrefillWork::OctaveOf(depth); tokens < max; ++octave) {
    const double each = TokenSeconds(octave);
    if (each == 0.0 || seconds < each) break;
    Position here = max - tokens;
    if (octave + 1 < PrefillWork::kOctaves) {
      here = std::min(here, PrefillWork::EndOf(octave) - depth - tokens);
    }
    const bool all = seconds / each >= here;
    if (!all) here = static_cast<Position>(seconds / each);
    tokens += here;
    seconds -= here * each;
    if (!all) break;
  }
  return tokens;
}

}  // namespace kvcache
