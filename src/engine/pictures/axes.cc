#include "engine/pictures/axes.h"

#include <algorithm>
#include <cstddef>

namespace kvcache {
namespace {

// The tokens whose positions are their indices less what earlier pictures saved.
struct Walk {
  std::span<const PromptPicture> pictures;  // that are not behind yet
  Position saved = 0;

  // Leaves the pictures that end at or before `index`.
  void AdvanceTo(Position index) {
    while (!pictures.empty() && pictures.front().end() <= index) {
      const PictureShape& shape = pictures.front().picture->shape();
      if (shape.columns > 0) saved += shape.cells - std::max(shape.columns, shape.rows);
      pictures = pictures.subspan(1);
    }
  }
};

}  // namespace

void WriteAxes(std::span<const PromptPicture> pictures, Position begin, Position count,
               std::size_t at, std::span<Position> axes) {
  const std::size_t stride = axes.size() / 3;
  Walk walk{pictures};
  for (Position index = begin; index < begin + count; ++index, ++at) {
    walk.AdvanceTo(index);
    const PromptPicture* const next = walk.pictures.empty() ? nullptr : &walk.pictures.front();
    const bool has_grid =
        next != nullptr && next->begin <= index && next->picture->shape().columns > 0;
    const Position first = (has_grid ? next->begin : index) - walk.saved;
    const Position cell = has_grid ? index - next->begin : 0;
    const Position columns = has_grid ? next->picture->shape().columns : 1;
    axes[at] = first;
    axes[stride + at] = first + cell / columns;
    axes[2 * stride + at] = has_grid ? first + cell % columns : first;
  }
}

}  // namespace kvcache
