#include "model/graph/sequence_views.h"
#include "base/errors.h"

#include <algorithm>

namespace kvcache {

Status SequenceViews::Set(const Cache& cache, std::span<const SequenceLength> rows,
                          Position window) {
  histories_.clear();
  positions_.clear();
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for views of sequences", [&] {
    if (views_.size() < rows.size()) views_.resize(rows.size());
    history_of_query_.resize(rows.size());
    bidirectional_.assign(rows.size(), 1);
    histories_.reserve(rows.size());
    positions_.reserve(rows.size());
  }));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Position end = rows[i].length;
    const Position begin = window > 0 ? std::max<Position>(0, end - window + 1) : 0;
    Status status = views_[i].Set(cache, rows[i].sequence, begin, end);
    if (!status.ok()) {
      histories_.clear();
      positions_.clear();
      return status;
    }
    histories_.push_back(views_[i].runs());
    positions_.push_back(end);
    history_of_query_[i] = static_cast<std::int32_t>(i);
  }
  return Status::Ok();
}

Visibility SequenceViews::Visible() const {
  const std::size_t rows = positions_.size();
  return {.positions = positions_,
          .history_of_query = std::span(history_of_query_).first(rows),
          .histories = histories_,
          .bidirectional = std::span(bidirectional_).first(rows)};
}

}  // namespace kvcache
