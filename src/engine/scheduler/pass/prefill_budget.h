// What one pass reads of the prompts that wait, given to one prompt after the other.
//
// While nobody gets a token out of the pass, prompts fill it. Behind the tokens of requests that generate, or those of a
// prompt that ends in the pass, they get what adds at most the time of the pace, and 16 tokens at least.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>

#include "engine/scheduler/pass/prefill_pace.h"
#include "kvcache/types.h"

namespace kvcache {

class PrefillBudget {
 public:
  // The pass has `rows` tokens of requests that generate, and room for `room` of prompts. `pace` must outlive this.
  PrefillBudget(const PrefillPace& pace, Position room, int rows)
      : pace_(pace), room_(room), someone_waits_(rows > 0) {}

  // Returns how many tokens the pass has for a prompt of which `depth` tokens were read and `left` are left.
  Position Offer(Position depth, Position left) const {
    const Position max = std::min(left, room_);
    if (!someone_waits_) return max;
    const Position min = std::min(max, PrefillPace::kMinTokens - beside_.tokens());
    return std::max(min, pace_.Fit(beside_, depth, max));
  }
  // The prompt takes `tokens` of them, at least 1.
  void Take(Position depth, Position left, Position tokens) {
    room_ -= tokens;
    if (someone_waits_) beside_.Add(depth, tokens);
    if (tokens == left) someone_waits_ = true;
  }

 private:
  const PrefillPace& pace_;
  Position room_;
  bool someone_waits_;
  PrefillWork beside_;  // what those who wait have beside them
};

}  // namespace kvcache
