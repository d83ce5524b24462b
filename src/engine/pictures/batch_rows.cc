#include "engine/pictures/batch_rows.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

Status CheckPlace(const EngineBatch& batch, const InputRows& rows, std::int32_t before) {
  const auto size = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t end = std::int64_t{rows.index} + rows.count;
  const bool is_inside = rows.index >= before && rows.count >= 1 && end <= size;
  if (is_inside && rows.values != nullptr) return Status::Ok();
  return InvalidArgument(StrCat("rows are at [", rows.index, ", ", end, ") of a batch of ", size,
                                ", behind rows that end at ", before,
                                "; they must have values, and ascend within the batch"));
}

Status CheckSequence(const EngineBatch& batch, const InputRows& rows) {
  const auto first = static_cast<std::size_t>(rows.index);
  const auto count = static_cast<std::size_t>(rows.count);
  for (std::size_t i = 1; i < count; ++i) {
    const bool follows = batch.sequences[first + i] == batch.sequences[first] &&
                         batch.positions[first + i] == batch.positions[first + i - 1] + 1;
    if (follows) continue;
    return InvalidArgument(StrCat("token ", first + i, " of the batch is at position ",
                                  batch.positions[first + i],
                                  "; rows need neighboring positions of one sequence"));
  }
  if (!rows.see_each_other) return Status::Ok();
  const Position last = batch.positions[first + count - 1];
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.sequences[i] != batch.sequences[first] || batch.positions[i] <= last) continue;
    return InvalidArgument(StrCat("tokens up to position ", last, " see each other, and position ",
                                  batch.positions[i],
                                  " of their sequence is in the pass; end the pass behind them"));
  }
  return Status::Ok();
}

}  // namespace

Status CheckInputRows(const EngineBatch& batch) {
  if (!batch.parents.empty()) return Unsupported("a pass of drafts takes no input rows");
  if (batch.sequences.size() != batch.tokens.size() ||
      batch.positions.size() != batch.tokens.size()) {
    return InvalidArgument(StrCat("a batch of ", batch.tokens.size(), " tokens has ",
                                  batch.positions.size(), " positions and ", batch.sequences.size(),
                                  " sequences"));
  }
  std::int32_t before = 0;
  for (const InputRows& rows : batch.rows) {
    KVCACHE_RETURN_IF_ERROR(CheckPlace(batch, rows, before));
    KVCACHE_RETURN_IF_ERROR(CheckSequence(batch, rows));
    before = rows.index + rows.count;
  }
  return Status::Ok();
}

void TokensThatSeeEachOther(std::span<const InputRows> rows, std::vector<std::int32_t>& indices) {
  indices.clear();
  for (const InputRows& some : rows) {
    if (!some.see_each_other) continue;
    for (std::int32_t i = 0; i < some.count; ++i) indices.push_back(some.index + i);
  }
}

}  // namespace kvcache
