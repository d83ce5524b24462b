#include "vision/patch_order.h"

#include <algorithm>

#include "base/errors.h"

namespace kvcache::vision {
namespace {

struct TokenRange {
  int first_column, end_column, first_row, end_row;
};

void AddToken(PatchOrder& order, int column, int row, int merge) {
  order.tokens.push_back(row * (order.grid.columns / merge) + column);
  for (int y = 0; y < merge; ++y) {
    for (int x = 0; x < merge; ++x) {
      order.rows.push_back(row * merge + y);
      order.columns.push_back(column * merge + x);
    }
  }
}

void AddWindow(PatchOrder& order, const TokenRange& tokens, int merge) {
  for (int row = tokens.first_row; row < tokens.end_row; ++row) {
    for (int column = tokens.first_column; column < tokens.end_column; ++column) {
      AddToken(order, column, row, merge);
    }
  }
  order.window_ends.push_back(static_cast<std::int32_t>(order.rows.size()));
}

}  // namespace

Result<PatchOrder> OrderPatches(PictureGrid patches, int merge, int window) {
  PatchOrder order;
  order.grid = patches;
  const int columns = patches.columns / merge, rows = patches.rows / merge;
  const int step_x = window == 0 ? columns : window, step_y = window == 0 ? rows : window;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the order of a picture's patches", [&] {
    for (int y = 0; y < rows; y += step_y) {
      for (int x = 0; x < columns; x += step_x) {
        AddWindow(order, {x, std::min(columns, x + step_x), y, std::min(rows, y + step_y)}, merge);
      }
    }
  }));
  return order;
}

}  // namespace kvcache::vision
