#include "engine/pictures/axes.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

namespace kvcache {
namespace {

using Axes = std::vector<Position>;

PromptPicture At(Position begin, PictureShape shape) {
  return {begin, std::make_shared<Picture>(std::array<std::byte, 32>{}, shape)};
}

Axes AxesOf(const std::vector<PromptPicture>& pictures, Position begin, Position count) {
  Axes axes(static_cast<std::size_t>(3 * count), -1);
  WriteAxes(pictures, begin, count, 0, axes);
  return axes;
}

TEST(AxesTest, ATextHasItsIndices) {
  EXPECT_EQ(AxesOf({}, 3, 2), (Axes{3, 4, 3, 4, 3, 4}));
}

TEST(AxesTest, APictureHasTheTimeOfItsFirstCell) {
  const std::vector<PromptPicture> pictures = {At(2, {.cells = 6, .columns = 3, .rows = 2})};
  EXPECT_EQ(AxesOf(pictures, 0, 10), (Axes{0, 1, 2, 2, 2, 2, 2, 2, 5, 6,     // time
                                           0, 1, 2, 2, 2, 3, 3, 3, 5, 6,     // row
                                           0, 1, 2, 3, 4, 2, 3, 4, 5, 6}));  // column
}

TEST(AxesTest, AnyPartOfATextHasThePositionsOfTheWhole) {
  const std::vector<PromptPicture> pictures = {At(2, {.cells = 6, .columns = 3, .rows = 2}),
                                               At(8, {.cells = 8, .columns = 2, .rows = 4}),
                                               At(20, {.cells = 5})};
  const Axes all = AxesOf(pictures, 0, 30);
  EXPECT_EQ(all[16], 2 + 3 + 4);  // behind both grids
  EXPECT_EQ(all[29], 29 - 3 - 4);
  for (Position begin = 0; begin < 30; ++begin) {
    for (Position count = 1; begin + count <= 30; ++count) {
      Axes part(90, -1);
      WriteAxes(pictures, begin, count, static_cast<std::size_t>(begin), part);
      for (std::size_t axis = 0; axis < 3; ++axis) {
        for (Position i = 0; i < 30; ++i) {
          const std::size_t at = axis * 30 + static_cast<std::size_t>(i);
          const bool is_inside = i >= begin && i < begin + count;
          ASSERT_EQ(part[at], is_inside ? all[at] : -1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvcache
