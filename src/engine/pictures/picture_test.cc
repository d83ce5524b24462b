#include "kvcache_engine/picture.h"

#include <gtest/gtest.h>

#include <set>

#include "base/sha256.h"
#include "engine/pictures/picture_rows.h"
#include "engine/pictures/prompt_pictures.h"
#include "support/pictures/scripted_tower.h"

namespace kvcache {
namespace {

Sha256Hash HashOfText(std::string_view text) {
  return Sha256Of(std::as_bytes(std::span(text)));
}

TEST(PictureTest, IdsAreBelowZeroAndDifferByContentAndCell) {
  const Picture a(HashOfText("a"), {.cells = 256});
  const Picture b(HashOfText("b"), {.cells = 256});
  std::set<std::int32_t> ids;
  for (const Picture* const picture : {&a, &b}) {
    ASSERT_EQ(picture->ids().size(), 256U);
    for (const std::int32_t id : picture->ids()) {
      EXPECT_LT(id, 0);
      ids.insert(id);
    }
  }
  EXPECT_EQ(ids.size(), 512U);
  const Picture again(HashOfText("a"), {.cells = 256});
  EXPECT_TRUE(std::ranges::equal(a.ids(), again.ids()));
  EXPECT_EQ(a.name(), again.name());
  EXPECT_NE(a.name(), b.name());
}

// Stores outlive the program: the ids of a picture must stay what they are.
TEST(PictureTest, IdsStayTheSameInAllVersions) {
  const Picture picture(HashOfText("a"), {.cells = 9});
  std::vector<std::int32_t> first(picture.ids().begin(), picture.ids().end());
  EXPECT_EQ(first[0], -273433949);
  EXPECT_EQ(first[8], -82357974);
}

TEST(PictureTest, LengthsInsideAPictureAreCut) {
  const auto picture = std::make_shared<Picture>(HashOfText("a"), PictureShape{.cells = 4});
  std::vector<PromptPicture> pictures{{3, picture}, {7, picture}, {20, picture}};
  EXPECT_EQ(BeforePicture(pictures, 3), 3);
  EXPECT_EQ(BeforePicture(pictures, 4), 3);
  EXPECT_EQ(BeforePicture(pictures, 7), 7);
  EXPECT_EQ(BeforePicture(pictures, 8), 7);
  EXPECT_EQ(BeforePicture(pictures, 30), 30);
  EXPECT_EQ(BehindPicture(pictures, 8), 11);
  EXPECT_EQ(BehindPicture(pictures, 11), 11);
  EXPECT_EQ(PictureFrom(pictures, 7)->begin, 7);
  EXPECT_EQ(PictureFrom(pictures, 11)->begin, 20);
  EXPECT_EQ(PictureFrom(pictures, 24), nullptr);
  EraseTokens(pictures, 1, 11);
  ASSERT_EQ(pictures.size(), 1U);
  EXPECT_EQ(pictures[0].begin, 10);
}

PicturePtr Prepared(const PictureRows& rows, std::string_view file) {
  return std::move(rows.tower().Prepare(std::as_bytes(std::span(file)), "picture 1")).value();
}

TEST(PictureRowsTest, KeepNothingAboveTheirLimitAndCountWhatRequestsHold) {
  PictureRows rows(std::make_unique<testing::ScriptedTower>(4200));
  EmbeddedPtr large = *rows.Compute(Prepared(rows, "large 4096"), nullptr);
  ASSERT_GT(large->bytes(), PictureRows::kMaxKeptBytes);
  EXPECT_EQ(rows.Find(*Prepared(rows, "large 4096")), nullptr);
  EXPECT_EQ(rows.HeldBytes(), 0);  // those of one request are free
  EmbeddedPtr small = *rows.Compute(Prepared(rows, "small 8"), nullptr);
  EXPECT_EQ(rows.Find(*Prepared(rows, "small 8")), small);
  EXPECT_EQ(rows.HeldBytes(), small->bytes());
  rows.Drop();
  EXPECT_EQ(rows.Find(*Prepared(rows, "small 8")), nullptr);
  EXPECT_EQ(rows.HeldBytes(), small->bytes());
  large = nullptr;
  EXPECT_EQ(rows.HeldBytes(), 0);
}

TEST(PictureRowsTest, FreeTheTowersMemoryOnceNobodyWaits) {
  auto tower = std::make_unique<testing::ScriptedTower>(16);
  const auto counts = tower->shared_counts();
  PictureRows rows(std::move(tower));
  const PicturePtr picture = Prepared(rows, "a 8");
  const auto stops = [] { return true; };
  EXPECT_EQ(*rows.Advance(picture, 64, stops), nullptr);
  rows.Drop();
  EXPECT_EQ(counts->released, 0);
  EXPECT_EQ(*rows.Advance(picture, 64, stops), nullptr);
  EXPECT_EQ(counts->begun, 1);
  rows.Rest();
  rows.Drop();
  EXPECT_EQ(counts->released, 1);
  EXPECT_NE(*rows.Compute(picture, nullptr), nullptr);
  EXPECT_EQ(counts->begun, 2);
  rows.Drop();
  EXPECT_EQ(counts->released, 2);
}

// A question behind a large picture is not lost with it.
TEST(PictureTest, AShiftLeavesAQuarterIfSomethingElseCanGo) {
  const auto picture = std::make_shared<Picture>(HashOfText("a"), PictureShape{.cells = 60});
  const std::vector<PromptPicture> late{{35, picture}};
  EXPECT_EQ(EndOfShift({}, 1, 101), 51);
  EXPECT_EQ(EndOfShift(late, 1, 101), 35);
  EXPECT_EQ(EndOfShift(late, 35, 101), 95);  // nothing is before it
  EXPECT_EQ(EndOfShift(late, 1, 150), 95);   // the rest is more than a quarter
  const std::vector<PromptPicture> last{{41, picture}};
  EXPECT_EQ(EndOfShift(last, 1, 101), 41);  // the whole conversation would go
}

}  // namespace
}  // namespace kvcache
