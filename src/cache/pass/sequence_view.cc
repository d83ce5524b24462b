#include "kvcache/sequence_view.h"

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

Status SequenceView::Set(const Cache& cache, SequenceId sequence, Position begin, Position end) {
  Status status = cache.FindCells(sequence, begin, end, runs_);
  if (!status.ok()) runs_.clear();
  end_ = status.ok() ? end : 0;
  return status;
}

Result<Visibility> SequenceView::Visible(int queries) {
  if (queries < 1) return Invalid(StrCat("a view for ", queries, " queries; must be at least 1"));
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a view of a sequence", [&] {
    positions_.assign(queries, end_);
    history_of_query_.assign(queries, 0);
    bidirectional_.assign(queries, 1);
  }));
  history_ = runs_;
  return Visibility{.positions = positions_,
                    .history_of_query = history_of_query_,
                    .histories = std::span(&history_, 1),
                    .bidirectional = bidirectional_};
}

}  // namespace kvcache
