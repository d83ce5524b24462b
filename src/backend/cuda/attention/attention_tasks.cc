#include "backend/cuda/attention/attention_tasks.h"

#include <algorithm>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_split.h"

namespace kvcache::cuda {
namespace {

// Rows of one KV head whose partial results lie together: those of a node or of a sequence in prefill.
struct RowsOfHead {
  std::span<const cpu::QueryToken> tokens;
  std::int32_t first_token = 0;
  std::int32_t history = 0;
  PositionRange seen{};
};

// How a node's splits are cut, and where its partial results are: one of its first part, one of each other split.
struct NodeParts {
  std::int32_t splits = 1;  // of a part
  std::int32_t merged = 1;  // splits that leave one result
  std::int32_t results = 0;
  std::int64_t partials = 0;
};

class Builder {
 public:
  Builder(const cpu::AttentionPlan& plan, const LayerKv& layer, int group,
          const Visibility& visibility, const UsableRows& usable, const WantedTasks& wanted,
          std::int64_t max_floats)
      : plan_(plan),
        kv_heads_(layer.shape.kv_heads),
        row_floats_(cpu::PartialStride(layer.shape.v_dim)),
        group_(group),
        visibility_(visibility),
        usable_(usable),
        wanted_(wanted),
        max_floats_(max_floats) {}

  AttentionTasks Build() {
    AddTokens();
    AddRuns();
    const auto splits = plan_.splits();
    to_.splits.assign(splits.begin(), splits.end());
    CutNodes();
    for (std::size_t i = 0; i < nodes_.size(); ++i) AddNode(i);
    CountPrefill();
    for (const cpu::SequencePlan& sequence : plan_.sequences()) {
      if (sequence.decode) {
        AddSteps(sequence);
      } else {
        AddPrefill(sequence);
      }
    }
    return std::move(to_);
  }

 private:
  void AddTokens() {
    for (const cpu::QueryToken& token : plan_.tokens()) {
      to_.tokens.push_back({token.index, token.position, token.seen.begin, token.seen.end});
      to_.merge_tokens.push_back({token.index, 0, 0});
    }
  }

  // The runs of the histories that have queries.
  void AddRuns() {
    first_runs_.assign(visibility_.histories.size(), 0);
    for (const cpu::SequencePlan& sequence : plan_.sequences()) {
      const auto history = static_cast<std::size_t>(sequence.history);
      first_runs_[history] = static_cast<std::int32_t>(to_.runs.size());
      for (const HistoryRun& run : visibility_.histories[history]) {
        to_.runs.push_back({run.position, run.cell, run.length});
      }
    }
  }

  // The place in kTaskRows of the kernel for `rows` rows of a KV head: the smallest that holds them. A kernel for
  // many rows computes as many as it is made for, so a few more than sixteen are better cut in two.
  std::size_t KernelFor(std::int64_t rows) const {
    std::size_t best = 0;
    for (std::size_t i = 0; i < kFirstDecode; ++i) {
      if (!usable_[i]) continue;
      best = i;
      if (rows <= kTaskRows[i]) break;
      if (kTaskRows[i] == 16 && rows <= 32) break;
    }
    return best;
  }

  std::int64_t ResultFloats(std::int64_t tokens) const { return tokens * group_ * row_floats_; }

  // The positions that the rows [first, first + rows) see.
  PositionRange SeenBy(const RowsOfHead& of, std::int32_t first, std::int32_t rows) const {
    PositionRange seen{kEndOfSequence, 0};
    for (std::int32_t i = first / group_; i <= (first + rows - 1) / group_; ++i) {
      seen = cpu::Union(seen, of.tokens[static_cast<std::size_t>(i)].seen);
    }
    return {std::max(seen.begin, of.seen.begin), std::min(seen.end, of.seen.end)};
  }

  AttendTask TaskOf(const RowsOfHead& of, std::int32_t kv_head, std::int32_t first,
                    std::int32_t rows) const {
    const auto history = static_cast<std::size_t>(of.history);
    const PositionRange seen = SeenBy(of, first, rows);
    return {.partials = 0,
            .distance = 0,
            .kv_head = kv_head,
            .first_token = of.first_token,
            .first_row = first,
            .rows = rows,
            .first_run = first_runs_[history],
            .runs = static_cast<std::int32_t>(visibility_.histories[history].size()),
            .first_split = 0,
            .splits = 0,
            .seen_begin = seen.begin,
            .seen_end = seen.end};
  }

  // Whether the splits of the task are aligned (decode_split-inl.h). If so, its runs become those that it sees.
  bool Align(AttendTask& task) const {
    if (task.splits == 0 || task.runs == 0) return false;
    const std::int32_t* const splits = to_.splits.data() + task.first_split;
    if (splits[task.splits - 1] - splits[0] != task.splits - 1) return false;
    const AttendRun* const runs = to_.runs.data() + task.first_run;
    const AttendRun* const runs_end = runs + task.runs;
    const std::int32_t seen_begin = std::max(task.seen_begin, runs[0].position);
    const std::int32_t end = std::min(task.seen_end, (splits[task.splits - 1] + 1) * kAttendSplit);
    std::int32_t position = std::max(seen_begin, splits[0] * kAttendSplit);
    if (position >= end) return false;
    const AttendRun* const first =
        std::upper_bound(runs, runs_end, position,
                         [](std::int32_t at, const AttendRun& run) { return at < run.position; }) -
        1;
    const AttendRun* run = first;
    for (;; ++run) {
      if (run == runs_end || run->position > position) return false;
      if (run->position + run->length <= position) return false;
      if ((run->cell - run->position) % kAttendTile != 0) return false;
      position = run->position + run->length;
      if (position >= end) break;
      if (position % kAttendTile != 0) return false;
    }
    task.seen_begin = seen_begin;
    task.first_run += static_cast<std::int32_t>(first - runs);
    task.runs = static_cast<std::int32_t>(run - first + 1);
    return true;
  }

  // Cuts the splits of each node into equal parts, in all about as many as run at once.
  void CutNodes() {
    const auto weight = [&](const cpu::PrefixNode& node) {
      return std::max<std::int64_t>(std::int64_t{node.tokens} * group_, 8);
    };
    std::int64_t all = 0;
    for (const cpu::PrefixNode& node : plan_.nodes()) all += node.splits * weight(node);
    for (const cpu::PrefixNode& node : plan_.nodes()) {
      NodeParts of;
      const std::int64_t splits = node.splits;
      const std::int64_t parts = std::clamp<std::int64_t>(
          splits * wanted_.decode * weight(node) / std::max<std::int64_t>(all * kv_heads_, 1), 1,
          std::max<std::int64_t>(splits, 1));
      of.splits = static_cast<std::int32_t>((splits + parts - 1) / parts);
      // Only the first splits of a row can be merged where they are computed.
      const std::int64_t result = kv_heads_ * ResultFloats(node.tokens);
      const std::int64_t most = std::max<std::int64_t>(max_floats_ / result, 1);
      const std::int64_t merged = std::max<std::int64_t>(of.splits, splits + 1 - most);
      of.merged =
          node.parent < 0 ? static_cast<std::int32_t>(std::max<std::int64_t>(merged, 1)) : 1;
      of.partials = to_.partial_floats;
      of.results = node.splits - of.merged + 1;
      to_.partial_floats += of.results * result;
      nodes_.push_back(of);
    }
  }

  void AddNode(std::size_t i) {
    const cpu::PrefixNode& node = plan_.nodes()[i];
    const NodeParts& parts = nodes_[i];
    const RowsOfHead of{plan_.TokensOf(node), node.first_token,
                        plan_.SequencesOf(node).front().history, node.seen};
    const std::int64_t result = ResultFloats(node.tokens);
    const std::int32_t rows = node.tokens * group_;
    const std::size_t kernel = KernelFor(rows);
    for (std::int32_t head = 0; head < kv_heads_; ++head) {
      std::int32_t count = 0;
      for (std::int32_t part = 0; part < node.splits; part += count) {
        const bool merges = node.parent < 0 && part == 0;
        count = std::min(merges ? parts.merged : parts.splits, node.splits - part);
        const std::int64_t before = part == 0 ? 0 : part - parts.merged + 1;
        for (std::int32_t first = 0; first < rows; first += kTaskRows[kernel]) {
          AttendTask task = TaskOf(of, head, first, std::min(rows - first, kTaskRows[kernel]));
          task.partials = parts.partials + (std::int64_t{head} * parts.results + before) * result +
                          first * row_floats_;
          task.distance = merges ? 0 : result;
          task.first_split = node.first_split + part;
          task.splits = count;
          const std::size_t decode = kernel + kFirstDecode;
          const bool aligned = decode < usable_.size() && usable_[decode] && Align(task);
          to_.tasks[aligned ? decode : kernel].push_back(task);
        }
      }
    }
  }

  // The nodes from the root to the sequence's leaf.
  void AddSteps(const cpu::SequencePlan& sequence) {
    const auto first = static_cast<std::int32_t>(to_.merge_steps.size());
    for (std::int32_t i = sequence.leaf; i >= 0;) {
      const cpu::PrefixNode& node = plan_.nodes()[static_cast<std::size_t>(i)];
      const std::int64_t result = ResultFloats(node.tokens);
      const NodeParts& parts = nodes_[static_cast<std::size_t>(i)];
      to_.merge_steps.push_back(
          {parts.partials, parts.results * result, result, parts.results, node.first_token});
      i = node.parent;
    }
    std::reverse(to_.merge_steps.begin() + first, to_.merge_steps.end());
    SetSteps(sequence, first);
  }

  void SetSteps(const cpu::SequencePlan& sequence, std::int32_t first) {
    for (std::int32_t i = 0; i < sequence.tokens; ++i) {
      MergeToken& token = to_.merge_tokens[static_cast<std::size_t>(sequence.first_token + i)];
      token.first_step = first;
      token.steps = static_cast<std::int32_t>(to_.merge_steps.size()) - first;
    }
  }

  // Appends the splits that hold a retained position of `seen`.
  void AddSplits(const RowsOfHead& of) {
    std::int32_t last = -1;
    for (const HistoryRun& run : visibility_.histories[static_cast<std::size_t>(of.history)]) {
      const std::int64_t run_end = std::int64_t{run.position} + run.length;
      const std::int64_t begin = std::max(run.position, of.seen.begin);
      const std::int64_t end = std::min<std::int64_t>(run_end, of.seen.end);
      if (begin >= end) continue;
      const auto first =
          std::max(last + 1, static_cast<std::int32_t>(begin / cpu::kSplitPositions));
      last = static_cast<std::int32_t>((end - 1) / cpu::kSplitPositions);
      for (std::int32_t split = first; split <= last; ++split) to_.splits.push_back(split);
    }
  }

  std::int64_t Tiles(const cpu::SequencePlan& sequence) const {
    const std::int64_t rows = std::int64_t{sequence.tokens} * group_;
    const int at_once = kTaskRows[KernelFor(rows)];
    return (rows + at_once - 1) / at_once;
  }

  void CountPrefill() {
    for (const cpu::SequencePlan& sequence : plan_.sequences()) {
      if (!sequence.decode) prefill_tiles_ += Tiles(sequence) * kv_heads_;
    }
  }

  // Splits of a task in prefill: all, or fewer where there would be too few tasks. All splits but those of
  // the first task then leave partial results.
  std::int32_t SplitsAtOnce(std::int32_t splits, std::int64_t result_floats) const {
    const std::int64_t parts = std::max<std::int64_t>(wanted_.prefill / prefill_tiles_, 1);
    const auto at_once = static_cast<std::int32_t>((splits + parts - 1) / parts);
    if (at_once >= splits || (splits - at_once + 1) * result_floats > max_floats_) return splits;
    return at_once;
  }

  // The last rows see the most and come first, so that they do not keep one processor busy after all others
  // have finished.
  void AddPrefill(const cpu::SequencePlan& sequence) {
    const RowsOfHead of{plan_.TokensOf(sequence), sequence.first_token, sequence.history,
                        sequence.seen};
    const auto first_split = static_cast<std::int32_t>(to_.splits.size());
    AddSplits(of);
    const std::int32_t splits = static_cast<std::int32_t>(to_.splits.size()) - first_split;
    const std::int32_t rows = sequence.tokens * group_;
    const std::int64_t result = ResultFloats(sequence.tokens);
    const std::int32_t merged = SplitsAtOnce(splits, result * kv_heads_);
    const std::int32_t results = splits - merged + 1;
    const std::size_t kernel = KernelFor(rows);
    const std::int32_t at_once = kTaskRows[kernel];
    for (std::int32_t first = (rows - 1) / at_once * at_once; first >= 0; first -= at_once) {
      for (std::int32_t head = 0; head < kv_heads_; ++head) {
        AttendTask task = TaskOf(of, head, first, std::min(rows - first, at_once));
        task.partials = to_.partial_floats + head * results * result + first * row_floats_;
        if (merged == splits) {
          CutSplits(first_split, task);
          to_.tasks[kernel].push_back(task);
        } else {
          AddParts(task, first_split, splits, merged, result, to_.tasks[kernel]);
        }
      }
    }
    const auto step = static_cast<std::int32_t>(to_.merge_steps.size());
    to_.merge_steps.push_back(
        {to_.partial_floats, results * result, result, results, sequence.first_token});
    SetSteps(sequence, step);
    to_.partial_floats += kv_heads_ * results * result;
  }

  // Adds the tasks of one tile of rows, for `at_once` splits each.
  static void AddParts(AttendTask task, std::int32_t first_split, std::int32_t splits,
                       std::int32_t at_once, std::int64_t result, std::vector<AttendTask>& to) {
    for (std::int32_t part = 0; part < splits; part += at_once) {
      AttendTask of_part = task;
      of_part.first_split = first_split + part;
      of_part.splits = std::min(at_once, splits - part);
      if (part > 0) {
        of_part.partials += (part - at_once + 1) * result;
        of_part.distance = result;
      }
      to.push_back(of_part);
    }
  }

  // Sets the splits of the task to those from place `first` on that its rows see.
  void CutSplits(std::int32_t first, AttendTask& task) const {
    if (task.seen_begin >= task.seen_end) return;
    const auto begin = std::lower_bound(to_.splits.begin() + first, to_.splits.end(),
                                        task.seen_begin / cpu::kSplitPositions);
    const auto end =
        std::upper_bound(begin, to_.splits.end(), (task.seen_end - 1) / cpu::kSplitPositions);
    task.first_split = static_cast<std::int32_t>(begin - to_.splits.begin());
    task.splits = static_cast<std::int32_t>(end - begin);
  }

  const cpu::AttentionPlan& plan_;
  int kv_heads_;
  std::int64_t row_floats_;
  int group_;
  const Visibility& visibility_;
  UsableRows usable_;
  WantedTasks wanted_;
  std::int64_t max_floats_;
  std::int64_t prefill_tiles_ = 0;  // tasks of all sequences in prefill, before they are cut
  std::vector<NodeParts> nodes_;
  std::vector<std::int32_t> first_runs_;  // [histories]
  AttentionTasks to_;
};

}  // namespace

AttentionTasks MakeAttentionTasks(const cpu::AttentionPlan& plan, const LayerKv& layer, int group,
                                  const Visibility& visibility, const UsableRows& usable,
                                  const WantedTasks& wanted, std::int64_t max_floats) {
  return Builder(plan, layer, group, visibility, usable, wanted, max_floats).Build();
}

}  // namespace kvcache::cuda
