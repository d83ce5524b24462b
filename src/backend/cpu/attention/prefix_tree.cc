#include "backend/cpu/attention/prefix_tree.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/history_sharing.h"

namespace kvcache::cpu {
namespace {

// Limits of a shared node: its rows, and the values of their queries (256 KiB). Each split reads
// the queries again, so they have to stay in the caches.
constexpr std::int64_t kMaxRows = 256;
constexpr std::int64_t kMaxQueryValues = 1 << 16;
// With many threads the limit of rows is lowered, but not below this, so that there are enough
// tasks for all.
constexpr std::int64_t kMinRows = 8;
// Partial results that sharing may add to one call.
constexpr std::int64_t kMaxPartialBytes = 256 << 20;

std::span<const HistoryRun> RunsOf(const PrefixTreeCall& call, const SequencePlan& sequence) {
  return call.visibility.histories[static_cast<std::size_t>(sequence.history)];
}

// The number of splits in [begin, end) that `seen` touches.
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

void PrefixTree::CompareNeighbors(const PrefixTreeCall& call, std::span<SequencePlan> decode) {
  for (std::size_t i = 1; i < decode.size(); ++i) {
    decode[i].shared =
        SharedUntil(RunsOf(call, decode[i - 1]), RunsOf(call, decode[i])) / kSplitPositions;
  }
}

// Sets max_tokens_. The smallest task of a node is one split of all its rows; a node with too many
// rows would leave too few tasks for the threads.
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

// Returns whether it pays to read the splits from branch.splits to `shared` once for the whole
// branch, in bytes of memory traffic; if so, deducts the partial results from partials_left_.
//
//   saved   all readings of these splits but one, minus the work for rows that see nothing in
//           them, which costs about an eighth of a split's reading per row
//   cost    the partial results of the splits behind `shared`, written and read again; only the
//           splits of the root are merged on the way
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

// Adds a node for the positions before `end` that any token of the branch sees and that have no
// node yet. Adds none if there are no such positions.
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

// Adds a node for the prefix that the whole branch shares, if that pays; then each run of
// sequences that share more is a branch of its own.
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

// Cuts a branch with too many rows into pieces: each takes as many of the runs that share more than
// `shared` as fit.
void PrefixTree::AddPieces(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared) {
  const std::span<const SequencePlan> sequences = branch.sequences;
  std::size_t begin = 0;  // of the current piece
  std::size_t end = 0;    // of the runs that the piece holds so far
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
  CompareNeighbors(call, decode);
  BoundRows(call, decode);
  partials_left_ = kMaxPartialBytes;
  AddBranch(call, {.sequences = decode});
}

}  // namespace kvcache::cpu
