#include "cache/forward_pass.h"

#include <algorithm>
#include <cassert>
#include <tuple>

namespace kvcache {
namespace {

bool Before(const ForwardPass::Token& a, const ForwardPass::Token& b) {
  return std::tie(a.sequence, a.position) < std::tie(b.sequence, b.position);
}

}  // namespace

void ForwardPass::Reset(int max_batch, int max_sequences, const Reach& reach) {
  ordered_.reserve(max_batch);
  cell_of_.resize(max_batch);
  cell_runs_.reserve(max_batch);
  positions_.resize(max_batch);
  histories_index_.resize(max_batch);
  histories_.reserve(std::min(max_batch, max_sequences));
  bidirectional_.resize(max_batch);
  reach_ = reach;
}

std::span<const ForwardPass::Token> ForwardPass::Order(const Batch& batch) {
  assert(batch.size() <= positions_.size());
  ordered_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ordered_.push_back({batch.sequences[i], batch.positions[i], static_cast<std::int32_t>(i)});
  }
  // Batches nearly always come in order.
  if (!std::is_sorted(ordered_.begin(), ordered_.end(), Before)) {
    std::sort(ordered_.begin(), ordered_.end(), Before);
  }
  return ordered_;
}

void ForwardPass::Begin(CellTable& cells) {
  size_ = static_cast<std::int32_t>(ordered_.size());
  ClaimCells(cells);
  DescribeCells();
  DescribeHistories(cells);
  active_ = true;
  reserving_ = false;
}

void ForwardPass::ClaimCells(CellTable& cells) {
  for (const Token& token : ordered_) {
    cell_of_[token.index] = cells.Claim(token.sequence, token.position);
    positions_[token.index] = token.position;
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

// After all cells are claimed: claiming moves a sequence's runs.
void ForwardPass::DescribeHistories(const CellTable& cells) {
  histories_.clear();
  for (std::size_t i = 0; i < ordered_.size(); ++i) {
    if (i == 0 || ordered_[i].sequence != ordered_[i - 1].sequence) {
      histories_.push_back(cells.history(ordered_[i].sequence).runs());
    }
    histories_index_[ordered_[i].index] = static_cast<std::int32_t>(histories_.size()) - 1;
  }
  DescribeVisibility();
  visibility_.window = reach_.window;
  visibility_.chunk = reach_.chunk;
}

void ForwardPass::DescribeVisibility() {
  visibility_ = {};
  visibility_.positions = std::span(positions_).first(size_);
  visibility_.histories_index = std::span(histories_index_).first(size_);
  visibility_.histories = histories_;
}

void ForwardPass::Exempt(std::span<const std::int32_t> queries) {
  std::fill_n(bidirectional_.begin(), size_, std::uint8_t{0});
  for (const std::int32_t query : queries) bidirectional_[query] = 1;
  visibility_.bidirectional = {};
  if (!queries.empty()) visibility_.bidirectional = std::span(bidirectional_).first(size_);
}

void ForwardPass::BeginReserve(std::int32_t size, const CellTable& cells) {
  size_ = size;
  cell_runs_.clear();
  everything_ = {0, 0, cells.cells()};
  std::fill_n(positions_.begin(), size, cells.cells() - 1);
  std::fill_n(histories_index_.begin(), size, 0);
  histories_.assign(1, std::span(&everything_, 1));
  DescribeVisibility();
  active_ = true;
  reserving_ = true;
}

void ForwardPass::End() {
  active_ = false;
  size_ = 0;
  visibility_ = {};
}

}  // namespace kvcache
