#include "growing_sequence.h"

#include <algorithm>
#include <numeric>

namespace kvcache::bench {

Status GrowingSequence::Append(std::span<const std::int32_t> tokens, const PassHook& hook) {
  while (!tokens.empty()) {
    const std::size_t count =
        std::min(tokens.size(), static_cast<std::size_t>(engine_.max_batch()));
    positions_.resize(count);
    std::iota(positions_.begin(), positions_.end(), length_);
    sequences_.assign(count, SequenceId{0});
    KVCACHE_RETURN_IF_ERROR(engine_.Forward(
        {.tokens = tokens.first(count), .positions = positions_, .sequences = sequences_}));
    last_pass_ = static_cast<std::int32_t>(count);
    if (hook) KVCACHE_RETURN_IF_ERROR(hook(length_, last_pass_));
    length_ += last_pass_;
    tokens = tokens.subspan(count);
  }
  return Status::Ok();
}

Status GrowingSequence::LastLogits(std::span<float> logits) {
  const std::int32_t row[] = {last_pass_ - 1};
  return engine_.Logits(row, logits.data());
}

Status GrowingSequence::Truncate(Position length) {
  length_ = std::min(length_, length);
  return engine_.cache().Remove(SequenceId{0}, length_, kEndOfSequence);
}

Status GrowingSequence::Repeat(Position length) {
  const Position held = length_;
  if (length <= held) return Status::Ok();
  if (held == 0) {
    return {StatusCode::kInvalidArgument, "the sequence is empty; evaluate tokens before Repeat"};
  }
  Cache& cache = engine_.cache();
  while (length_ < length) {
    KVCACHE_RETURN_IF_ERROR(Claim(length_, std::min(length, length_ + engine_.max_batch())));
  }
  const Visibility& visible = cache.Visible();
  if (visible.window > 0 || visible.chunk > 0 || cache.Recurrent() != nullptr ||
      cache.Encoder() != nullptr) {
    return {StatusCode::kUnsupported,
            "the model has layers without a full history; Repeat needs full attention everywhere"};
  }
  const std::vector<CellMove> moves = Moves(held);
  for (int layer = 0; layer < engine_.info().layers; ++layer) {
    cache.SetLayer(layer);
    KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, cache.Storage());
    KVCACHE_RETURN_IF_ERROR(backend_.CopyCells(storage, moves));
  }
  return Status::Ok();
}

// Claims cells for positions [begin, end) without writing to them.
Status GrowingSequence::Claim(Position begin, Position end) {
  positions_.resize(static_cast<std::size_t>(end - begin));
  std::iota(positions_.begin(), positions_.end(), begin);
  sequences_.assign(positions_.size(), SequenceId{0});
  KVCACHE_RETURN_IF_ERROR(engine_.cache().StartForward(
      {.positions = positions_, .sequences = sequences_}, ForwardMode::kCompute));
  length_ = end;
  return Status::Ok();
}

// Returns the cell of a position. Sets *left to the number of positions from there on that are in
// neighbouring cells.
std::int32_t GrowingSequence::CellOf(Position position, std::int32_t* left) const {
  for (const HistoryRun& run : engine_.cache().Visible().histories[0]) {
    const std::int32_t offset = position - run.position;
    if (offset < 0 || offset >= run.length) continue;
    *left = run.length - offset;
    return run.cell + offset;
  }
  *left = 1;
  return 0;  // unreachable: the batch's sequence holds all of its positions
}

std::vector<CellMove> GrowingSequence::Moves(Position held) const {
  std::vector<CellMove> moves;
  for (Position to = held; to < length_;) {
    const Position from = to % held;
    std::int32_t from_left = 0;
    std::int32_t to_left = 0;
    CellMove move{CellOf(from, &from_left), CellOf(to, &to_left), 0};
    move.length = std::min({from_left, to_left, held - from, length_ - to});
    moves.push_back(move);
    to += move.length;
  }
  return moves;
}

}  // namespace kvcache::bench
