// How many tokens of prompts a pass reads beside requests that wait for a token: as many as add at most a given time
// to what these requests take by themselves. The times are measured, so the number follows the machine.
//
// A token of a prompt takes longer the more tokens are before it. So there is a time per token for each octave of
// depth. A depth that was not measured is taken for as dear as attention alone would make it: twice the time at half
// the depth. One measurement of an octave changes its time by +100% or −33% at most, and a chunk has at most 1.5 times the tokens of
// the last one: what disturbs a single pass says little of the next. How much longer passes take than expected, on average, is a
// margin, as in TCP's timer (RFC 6298): a machine with other work gets shorter chunks.
//
// What requests take by themselves is known from passes without prompts. Now and then a pass has no prompt although
// some wait, so that this time is measured again.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"
#include "speculation/pass_costs.h"

namespace kvcache {

// The tokens of prompts that a pass reads, by the octave of their depth.
class PrefillWork {
 public:
  static constexpr std::size_t kOctaves = 16;
  static constexpr Position kFirstOctave = 256;  // tokens; the last octave has no end

  // Returns the octave of a token with `depth` tokens before it.
  static std::size_t OctaveOf(Position depth);
  // Returns the depth at which an octave ends. REQUIRES: it is not the last one.
  static Position EndOf(std::size_t octave) { return kFirstOctave << octave; }

  // Adds the next `count` tokens of a prompt of which `depth` were read before.
  void Add(Position depth, Position count);

  Position tokens() const { return tokens_; }
  Position tokens(std::size_t octave) const { return of_octave_[octave]; }

 private:
  Position tokens_ = 0;
  std::array<Position, kOctaves> of_octave_{};
};

class PrefillPace {
 public:
  // Tokens that a pass with prompts reads at least, if they have so many left and the pass has room.
  static constexpr Position kMinTokens = 16;

  // A pass has at most `max_tokens` tokens. REQUIRES: step_seconds > 0, max_tokens >= 1.
  PrefillPace(double step_seconds, Position max_tokens);

  // Counts a pass with `rows` tokens of requests that generate, drafts included, and this work of prompts.
  void Count(int rows, const PrefillWork& work, double seconds);

  // Returns whether the next pass, with so many rows, has no prompt: what the rows take by themselves is unknown, or
  // was measured long ago. It is false behind a pass without a prompt, and for a pass without rows.
  bool MeasuresRows(int rows) const;

  // Returns how many of the next `max` tokens of a prompt, of which `depth` were read before, fit into a pass that
  // has this work already. 0: none.
  Position Fit(const PrefillWork& work, Position depth, Position max) const;
  // Returns the tokens of prompts beside rows in the last pass that had any; at least kMinTokens.
  Position last_tokens() const { return std::max(last_tokens_, kMinTokens); }
  // Returns whether the next pass with prompts begins with the one that arrived first, and not with the shortest: each
  // fourth does.
  bool BeginsWithOldest() const { return prompt_passes_ % 4 == 3; }

  // Returns the seconds that a pass of these rows takes without a prompt; 0 if none was measured.
  double RowSeconds(int rows) const;
  // Returns the seconds that the work is expected to add; 0 before any was measured.
  double AddedSeconds(const PrefillWork& work) const;

 private:
  void CountRows(int rows, double seconds);
  void CountAdded(const PrefillWork& work, double seconds);
  // Returns the expected seconds of a token in this octave; 0 before any was measured.
  double TokenSeconds(std::size_t octave) const;

  const double step_seconds_;
  // No time becomes so small that the next chunk, if it has many more tokens, comes as a surprise.
  const double min_token_seconds_;
  std::array<double, PrefillWork::kOctaves> token_seconds_{};  // 0: not measured
  double excess_;             // mean of max(0, measured / expected - 1)
  Position last_tokens_ = 0;  // of prompts beside rows, in the last pass that had any
  PassCosts costs_of_rows_;
  double pace_of_rows_ = 1.0;     // times costs_of_rows_, to follow within a few passes
  bool rows_are_steady_ = false;  // the last pass without a prompt took about the expected time
  int last_rows_ = 0;             // in the last pass without a prompt
  int passes_since_ = 0;          // that pass, with rows and a prompt
  std::int64_t prompt_passes_ = 0;
};

}  // namespace kvcache
