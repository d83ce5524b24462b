#include "cache/pass/forward_pass.h"
#include "base/errors.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <tuple>
#include <utility>

namespace kvcache {
namespace {

bool Before(const ForwardPass::Token& a, const ForwardPass::Token& b) {
  return std::tie(a.sequence, a.position, a.index) < std::tie(b.sequence, b.position, b.index);
}

}  // namespace

void ForwardPass::Reset(int max_batch, const AttentionSpan& span) {
  ordered_.reserve(max_batch);
  cell_of_.resize(max_batch);
  cell_runs_.reserve(max_batch);
  positions_.resize(max_batch);
  history_of_query_.resize(max_batch);
  histories_.reserve(max_batch);
  only_runs_.reserve(max_batch);
  history_sequences_.reserve(max_batch);
  drafts_.Reset(max_batch);
  next_drafts_.Reset(max_batch);
  bidirectional_.resize(max_batch);
  span_ = span;
}

std::span<const ForwardPass::Token> ForwardPass::Order(const Batch& batch) {
  assert(batch.size() <= positions_.size());
  ordered_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ordered_.push_back({batch.sequences[i], batch.positions[i], static_cast<std::int32_t>(i)});
  }
  // Most batches are ordered already.
  if (!std::is_sorted(ordered_.begin(), ordered_.end(), Before)) {
    std::sort(ordered_.begin(), ordered_.end(), Before);
  }
  return ordered_;
}

// In the worst case each token of a path starts a run.
Status ForwardPass::PrepareDrafts(const Batch& batch, const CellTable& cells) {
  next_drafts_.Set(batch);
  std::size_t runs = 0;
  for (std::int32_t path = 0; !next_drafts_.empty() && path < next_drafts_.paths(); ++path) {
    const std::int32_t leaf = next_drafts_.leaf(path);
    const RunList& history = cells.history(next_drafts_.sequence(leaf));
    runs += history.runs().size() + next_drafts_.position(leaf) + 1 - history.length();
  }
  next_path_runs_.clear();
  try {
    if (runs > next_path_runs_.capacity()) next_path_runs_.reserve(2 * runs);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("no memory for the histories of " + std::to_string(next_drafts_.paths()) +
                       " paths");
  }
  return Status::Ok();
}

void ForwardPass::Begin(CellTable& cells) {
  size_ = static_cast<std::int32_t>(ordered_.size());
  std::swap(drafts_, next_drafts_);
  ClaimCells(cells);
  DescribeCells();
  if (drafts_.empty()) {
    DescribeHistories(cells);
  } else {
    DescribePaths(cells);
  }
  DescribeVisibility();
  visibility_.window = span_.window;
  visibility_.chunk = span_.chunk;
  active_ = true;
  reserving_ = false;
}

void ForwardPass::ClaimCells(CellTable& cells) {
  for (const Token& token : ordered_) {
    positions_[token.index] = token.position;
    if (drafts_.empty()) {
      cell_of_[token.index] = cells.Claim(token.sequence, token.position);
      continue;
    }
    const std::int32_t parent =
        drafts_.parent(token.index);  // has a lower index and a lower position, so it has a cell
    const std::int32_t previous = parent != Drafts::kNone
                                      ? cell_of_[parent]
                                      : cells.history(token.sequence).CellOf(token.position - 1);
    cell_of_[token.index] = cells.ClaimDraft(token.sequence, token.position, previous);
  }
}

void ForwardPass::DescribeCells() {
  cell_runs_.clear();
  for (std::int32_t i = 0; i < size_; ++i) {
    if (i > 0 && cell_of_[i] == cell_of_[i - 1] + 1) {
      ++cell_runs_.back().length;
    } else {
      cell_runs_.push_back({cell_of_[i], 1});
    }
  }
}

// Runs only after all cells are claimed, because Claim may change a sequence's runs.
void ForwardPass::DescribeHistories(const CellTable& cells) {
  histories_.clear();
  history_sequences_.clear();
  only_runs_.clear();
  for (std::size_t i = 0; i < ordered_.size(); ++i) {
    if (i == 0 || ordered_[i].sequence != ordered_[i - 1].sequence) {
      std::span<const HistoryRun> runs = cells.history(ordered_[i].sequence).runs();
      if (runs.size() == 1) {
        only_runs_.push_back(runs.front());
        runs = std::span(only_runs_).last(1);
      }
      histories_.push_back(runs);
      history_sequences_.push_back(ordered_[i].sequence);
    }
    history_of_query_[ordered_[i].index] = static_cast<std::int32_t>(histories_.size()) - 1;
  }
}

// The history of a path is the sequence's runs, followed by the path.
void ForwardPass::DescribePaths(const CellTable& cells) {
  std::swap(path_runs_, next_path_runs_);
  histories_.clear();
  for (std::int32_t path = 0; path < drafts_.paths(); ++path) {
    const std::size_t first = path_runs_.size();
    const std::int32_t leaf = drafts_.leaf(path);
    const auto kept = cells.history(drafts_.sequence(leaf)).runs();
    path_runs_.insert(path_runs_.end(), kept.begin(), kept.end());
    for (const std::int32_t token : drafts_.PathTo(leaf)) {
      const HistoryRun run{positions_[token], cell_of_[token], 1};
      if (path_runs_.size() > first && Continues(path_runs_.back(), run)) {
        ++path_runs_.back().length;
      } else {
        path_runs_.push_back(run);
      }
    }
    histories_.push_back(std::span<const HistoryRun>(path_runs_).subspan(first));
  }
  for (std::int32_t i = 0; i < size_; ++i) history_of_query_[i] = drafts_.path_of(i);
}

void ForwardPass::DescribeVisibility() {
  visibility_ = {};
  visibility_.positions = std::span(positions_).first(size_);
  visibility_.history_of_query = std::span(history_of_query_).first(size_);
  visibility_.histories = histories_;
}

void ForwardPass::SetNonCausal(std::span<const std::int32_t> queries) {
  std::fill_n(bidirectional_.begin(), size_, std::uint8_t{0});
  for (const std::int32_t query : queries) bidirectional_[query] = 1;
  visibility_.bidirectional = {};
  if (!queries.empty()) visibility_.bidirectional = std::span(bidirectional_).first(size_);
}

void ForwardPass::BeginReserve(std::int32_t size, const CellTable& cells) {
  size_ = size;
  cell_runs_.clear();
  drafts_.Clear();
  everything_ = {0, 0, cells.cells()};
  std::fill_n(positions_.begin(), size, cells.cells() - 1);
  std::fill_n(history_of_query_.begin(), size, 0);
  histories_.assign(1, std::span(&everything_, 1));
  DescribeVisibility();
  active_ = true;
  reserving_ = true;
}

void ForwardPass::Rebind(const CellTable& cells) {
  if (!active_ || reserving_ || !drafts_.empty()) return;
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    if (!IsCopied(histories_[i])) histories_[i] = cells.history(history_sequences_[i]).runs();
  }
}

void ForwardPass::End() {
  active_ = false;
  drafts_.Clear();
  size_ = 0;
  visibility_ = {};
}

}  // namespace kvcache
