#include "backend/cpu/attention/prefix_tree.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/history_sharing.h"

namespace kvcache::cpu {
namespace {

// Rows that read together, and values of their queries (256 KiB): both are gone through again in
// each split.
constexpr std::int64_t kMaxRows = 256;
constexpr std::int64_t kMaxQueryValues = 1 << 16;
// With more threads than such rows leave tasks for, fewer.
constexpr std::int64_t kMinRows = 8;
// Of partial results behind shared nodes, in all.
constexpr std::int64_t kMaxPartialBytes = 256 << 20;

std::span<const HistoryRun> RunsOf(const PrefixTreeCall& call, const SequencePlan& sequence) {
  return call.visibility.histories[static_cast<std::size_t>(sequence.history)];
}

// Splits that `seen` touches, of those in [begin, end).
std::int64_t SplitsIn(PositionRange seen, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = std::max<std::int64_t>(seen.begin / kSplitPositions, begin);
  const std::int64_t last = (std::int64_t{seen.end} + kSplitPositions - 1) / kSplitPositions;
  return std::max<std::int64_t>(std::min(last, end) - first, 0);
}

std::int64_t SplitBytes(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  const std::int64_t values = BytesOf(layer.v_type, std::int64_t{kSplitPositions} * shape.v_dim);
  return BytesOf(layer.k_type, std::int64_t{kSplitPositions} * shape.k_dim) +
         (shape.v_in_k ? 0 : values);
}

std::int32_t TokensOf(std::span<const SequencePlan> sequences) {
  std::int32_t tokens = 0;
  for (const SequencePlan& sequence : sequences) tokens += sequence.tokens;
  return tokens;
}

}  // namespace

void PrefixTree::CompareNeighbours(const PrefixTreeCall& call, std::span<SequencePlan> decode) {
  for (std::size_t i = 1; i < decode.size(); ++i) {
    decode[i].shared =
        SharedUntil(RunsOf(call, decode[i - 1]), RunsOf(call, decode[i])) / kSplitPositions;
  }
}

// As one split of all rows is the smallest task that there can be of a node.
void PrefixTree::BoundRows(const PrefixTreeCall& call, std::span<const SequencePlan> decode) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  std::int64_t work = 0;
  for (const SequencePlan& sequence : decode) {
    work += SplitsIn(sequence.seen, 0, kAll) * sequence.tokens * call.group;
  }
  work *= call.layer.shape.kv_heads;
  const std::int64_t rows = std::min({kMaxRows, kMaxQueryValues / call.layer.shape.k_dim,
                                      std::max(work / (call.threads * kTasksPerThread), kMinRows)});
  max_tokens_ = static_cast<std::int32_t>(std::max<std::int64_t>(rows / call.group, 1));
}

// Whether to read what lies between the branch's splits and `shared` once, in bytes of traffic.
// What it saves: all readings but one. What it costs: partial results of the splits behind it,
// written and read, as the first node's alone are merged on the way; and rows that see nothing
// there, each about an eighth of a split's reading.
bool PrefixTree::Pays(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  const std::int64_t split_bytes = SplitBytes(call.layer);
  const std::int64_t partial_bytes =
      branch.leaf < 0 ? PartialStride(call.layer.shape.v_dim) * std::int64_t{sizeof(float)} : 0;
  PositionRange seen{kEndOfSequence, 0};
  for (const SequencePlan& sequence : branch.sequences) seen = Union(seen, sequence.seen);
  const std::int64_t once = SplitsIn(seen, branch.splits, shared);
  std::int64_t saved = -once * split_bytes;
  std::int64_t partials = 0;
  for (const SequencePlan& sequence : branch.sequences) {
    const std::int64_t rows = std::int64_t{sequence.tokens} * call.group;
    const std::int64_t own = SplitsIn(sequence.seen, branch.splits, shared);
    saved += own * split_bytes - rows * (once - own) * (split_bytes / 8);
    partials += rows * SplitsIn(sequence.seen, shared, kAll) * partial_bytes;
  }
  const std::int64_t of_all_heads = partials * call.layer.shape.kv_heads;
  if (saved <= 2 * partials || of_all_heads > partials_left_) return false;
  partials_left_ -= of_all_heads;
  return true;
}

void PrefixTree::AddSplits(std::span<const HistoryRun> runs, PrefixNode& node) {
  node.first_split = static_cast<std::int32_t>(splits_.size());
  std::int32_t last = -1;
  for (const HistoryRun& run : runs) {
    const std::int64_t run_end = std::int64_t{run.position} + run.length;
    const std::int64_t begin = std::max(run.position, node.seen.begin);
    const std::int64_t end = std::min<std::int64_t>(run_end, node.seen.end);
    if (begin >= end) continue;
    const auto first = std::max(last + 1, static_cast<std::int32_t>(begin / kSplitPositions));
    last = static_cast<std::int32_t>((end - 1) / kSplitPositions);
    for (std::int32_t split = first; split <= last; ++split) splits_.push_back(split);
  }
  node.splits = static_cast<std::int32_t>(splits_.size()) - node.first_split;
}

// What any of the branch's tokens sees before `end` and behind the splits that it has.
void PrefixTree::AddNode(const PrefixTreeCall& call, Position end, Branch& branch) {
  PrefixNode node{.parent = branch.leaf,
                  .first_sequence = branch.first,
                  .sequences = static_cast<std::int32_t>(branch.sequences.size()),
                  .first_token = branch.sequences.front().first_token,
                  .tokens = TokensOf(branch.sequences),
                  .seen = {kEndOfSequence, 0}};
  for (const SequencePlan& sequence : branch.sequences) {
    node.seen = Union(node.seen, sequence.seen);
  }
  node.seen = {std::max(node.seen.begin, SplitBase(branch.splits)), std::min(node.seen.end, end)};
  AddSplits(RunsOf(call, branch.sequences.front()), node);
  if (node.splits == 0) return;
  branch.leaf = static_cast<std::int32_t>(nodes_.size());
  for (SequencePlan& sequence : branch.sequences) {
    sequence.leaf = branch.leaf;
    sequence.splits += node.splits;
  }
  nodes_.push_back(node);
}

// What all of the branch share is a node, if that pays; then each part that shares more is a
// branch.
void PrefixTree::AddBranch(const PrefixTreeCall& call, Branch branch) {
  if (branch.sequences.size() == 1) return AddNode(call, kEndOfSequence, branch);
  std::int32_t shared = std::numeric_limits<std::int32_t>::max();
  for (const SequencePlan& sequence : branch.sequences.subspan(1)) {
    shared = std::min(shared, sequence.shared);
  }
  if (shared > branch.splits && Pays(call, branch, shared)) {
    if (TokensOf(branch.sequences) > max_tokens_) return AddPieces(call, branch, shared);
    AddNode(call, SplitBase(shared), branch);
    branch.splits = shared;
  }
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= branch.sequences.size(); ++i) {
    if (i < branch.sequences.size() && branch.sequences[i].shared > shared) continue;
    AddBranch(call, branch.Part(begin, i));
    begin = i;
  }
}

// Pieces of a branch of too many rows: as many of its parts, which share more, as fit.
void PrefixTree::AddPieces(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared) {
  const std::span<const SequencePlan> sequences = branch.sequences;
  std::size_t begin = 0;  // of the piece
  std::size_t end = 0;    // of the parts that it has
  for (std::size_t i = 1; i <= sequences.size(); ++i) {
    if (i < sequences.size() && sequences[i].shared > shared) continue;
    if (end > begin && TokensOf(sequences.subspan(begin, i - begin)) > max_tokens_) {
      AddBranch(call, branch.Part(begin, end));
      begin = end;
    }
    end = i;
  }
  AddBranch(call, branch.Part(begin, end));
}

void PrefixTree::Build(const PrefixTreeCall& call, std::span<SequencePlan> sequences) {
  nodes_.clear();
  splits_.clear();
  nodes_.reserve(2 * sequences.size());  // the most that there can be
  const auto decode = sequences.first(static_cast<std::size_t>(
      std::find_if(sequences.begin(), sequences.end(),
                   [](const SequencePlan& sequence) { return !sequence.decode; }) -
      sequences.begin()));
  if (decode.empty()) return;
  CompareNeighbours(call, decode);
  BoundRows(call, decode);
  partials_left_ = kMaxPartialBytes;
  AddBranch(call, {.sequences = decode});
}

}  // namespace kvcache::cpu
