#include "decode_together.h"

#include <algorithm>
#include <numeric>

namespace kvcache::bench {
namespace {

std::int32_t TokenOf(std::span<const std::int32_t> tokens, int sequence, int position) {
  return tokens[static_cast<std::size_t>(sequence + position) % tokens.size()];
}

// Evaluates positions [0, history) of one sequence.
Status EvaluateHistory(Engine& engine, std::span<const std::int32_t> tokens, int sequence,
                       int history) {
  for (int begin = 0; begin < history; begin += engine.max_batch()) {
    const int end = std::min(history, begin + engine.max_batch());
    const auto count = static_cast<std::size_t>(end - begin);
    std::vector<std::int32_t> pass;
    for (int i = begin; i < end; ++i) pass.push_back(TokenOf(tokens, sequence, i));
    std::vector<Position> positions(count);
    std::iota(positions.begin(), positions.end(), begin);
    const std::vector<SequenceId> sequences(count, SequenceId{sequence});
    KVCACHE_RETURN_IF_ERROR(
        engine.Forward({.tokens = pass, .positions = positions, .sequences = sequences}));
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<double>> DecodeTogether(Engine& engine, std::span<const std::int32_t> tokens,
                                           const TogetherOptions& options) {
  const auto count = static_cast<std::size_t>(options.sequences);
  std::vector<SequenceId> sequences;
  for (int s = 0; s < options.sequences; ++s) {
    sequences.push_back(SequenceId{s});
    KVCACHE_RETURN_IF_ERROR(EvaluateHistory(engine, tokens, s, options.history));
  }
  std::vector<std::int32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(count * static_cast<std::size_t>(engine.vocabulary_size()));
  std::vector<std::int32_t> pass(count);
  std::vector<double> times;
  for (int i = 0; i < options.rounds * (options.passes + 1); ++i) {
    const bool warm_up = i % (options.passes + 1) == 0;
    if (warm_up) options.before_round();
    const std::vector<Position> positions(count, options.history + i);
    for (int s = 0; s < options.sequences; ++s) {
      pass[static_cast<std::size_t>(s)] = TokenOf(tokens, s, options.history + i);
    }
    const double start = Seconds(options.clock);
    KVCACHE_RETURN_IF_ERROR(
        engine.Forward({.tokens = pass, .positions = positions, .sequences = sequences}));
    KVCACHE_RETURN_IF_ERROR(engine.Logits(rows, logits.data()));
    const double ms = 1e3 * (Seconds(options.clock) - start);
    if (!warm_up) times.push_back(ms);
  }
  return times;
}

}  // namespace kvcache::bench
