// Requests with pictures: bits, reuse, and how often the tower works.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/pictures/picture_rows.h"
#include "kvcache/store.h"
#include "store/store_testing.h"
#include "support/pictures/scripted_tower.h"
#include "support/scheduler_fixture.h"

namespace kvcache {
namespace {

using testing::ScriptedTower;

// A text with pictures: tokens of texts, and files of pictures.
struct Part {
  std::vector<std::int32_t> tokens{};
  std::string picture{};
};

class PictureSchedulerTest : public SchedulerFixture {
 protected:
  static constexpr int kCells = 16;

  // "windows": every second layer has one. "axes": positions have three axes.
  void SetUp() override {
    path_ = ::testing::TempDir() + "pictures." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = has_axes() ? "qwen2vl" : "gemma3",
                                .type = DType::kF32};
    if (GetParam() == std::string_view("windows")) {
      request.shape.window = 24;
      request.shape.window_pattern = 2;
    }
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    alone_ = Open({.threads = 2, .context = kContext, .prefill_chunk = 64});
    GiveTower(*alone_);
  }
  bool has_axes() const { return GetParam() == std::string_view("axes"); }
  bool has_windows() const { return GetParam() == std::string_view("windows"); }

  static std::shared_ptr<ScriptedTower::Counts> GiveTower(Engine& engine) {
    auto tower = std::make_unique<ScriptedTower>(engine.info().hidden_size);
    auto counts = tower->shared_counts();
    const Status status = engine.UseTower(std::move(tower));
    EXPECT_TRUE(status.ok()) << status.message();
    return counts;
  }

  void StartPictures(int sequences, SchedulerOptions options = {}) {
    Start(sequences, 0, std::move(options));
    counts_ = GiveTower(*engine_);
  }

  PicturePrompt Make(const std::vector<Part>& parts) {
    PicturePrompt prompt;
    for (const Part& part : parts) {
      prompt.tokens.insert(prompt.tokens.end(), part.tokens.begin(), part.tokens.end());
      if (part.picture.empty()) continue;
      auto picture = alone_->PreparePicture(std::as_bytes(std::span(part.picture)), "the picture");
      EXPECT_TRUE(picture.ok()) << picture.status().message();
      EXPECT_TRUE(alone_->AddPicture(*picture, prompt).ok());
    }
    return prompt;
  }

  Asked& AskPictures(const PicturePrompt& prompt, int max_tokens, ScheduledRequest request = {}) {
    request.pictures = prompt.pictures;
    Asked& asked = Ask(prompt.tokens, max_tokens, std::move(request));
    pictures_[&asked] = prompt.pictures;
    return asked;
  }

  // Compares all logits of a request with those of its text alone.
  void ExpectExactPictures(const Asked& asked) {
    ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
    Tokens text = asked.prompt;
    text.insert(text.end(), asked.result.tokens.begin(), asked.result.tokens.end());
    std::size_t next = 0;
    const std::vector<PromptPicture>& pictures = pictures_[&asked];
    Session session(*alone_, SequenceId{0});
    for (const auto& [length, row] : asked.logits) {
      while (session.position() < length) {
        const bool has_picture = next < pictures.size() && pictures[next].begin < length;
        const Position end = has_picture ? pictures[next].begin : length;
        const auto begin = static_cast<std::size_t>(session.position());
        ASSERT_TRUE(
            session.Append(std::span(text).subspan(begin, static_cast<std::size_t>(end) - begin))
                .ok());
        if (has_picture) {
          const Status status = session.AppendPicture(pictures[next++].picture);
          ASSERT_TRUE(status.ok()) << status.message();
        }
      }
      const auto expected = *session.LastLogits();
      ASSERT_EQ(row, Row(expected.begin(), expected.end()))
          << "after " << length << " tokens, restored " << asked.result.reuse.restored;
    }
  }

  static std::string Named(const std::string& name, bool whole = true) {
    return name + (whole ? " whole " : " ") + std::to_string(kCells);
  }

  std::shared_ptr<ScriptedTower::Counts> counts_;
  std::map<const Asked*, std::vector<PromptPicture>> pictures_;
};

TEST_P(PictureSchedulerTest, APictureHasTheBitsThatItHasAlone) {
  StartPictures(1);
  const Asked& asked =
      AskPictures(Make({{SomeTokens(21)}, {{}, Named("a")}, {SomeTokens(9, 40)}}), 5);
  RunAll();
  ExpectExactPictures(asked);
  EXPECT_EQ(asked.result.reuse.pictures, 1);
  EXPECT_EQ(asked.result.reuse.tower_runs, 1);
  EXPECT_EQ(asked.result.reuse.computed, 21 + kCells + 9);
}

TEST_P(PictureSchedulerTest, CellsOfAPictureSeeEachOtherOnlyIfTheyAreWhole) {
  StartPictures(1);
  const PicturePrompt whole = Make({{SomeTokens(5)}, {{}, Named("a")}, {SomeTokens(2)}});
  PicturePrompt causal = whole;
  causal.pictures[0].picture = Make({{{}, Named("a", false)}}).pictures[0].picture;
  // The same rows under the ids of another picture.
  const EmbeddedPtr rows = *alone_->pictures()->Compute(whole.pictures[0].picture, nullptr);
  std::vector<Row> logits;
  for (const bool see_each_other : {true, false}) {
    Session session(*alone_, SequenceId{0});
    ASSERT_TRUE(session.Append(std::span(whole.tokens).first(5)).ok());
    std::vector<Position> positions;
    for (Position i = 0; i < kCells; ++i) positions.push_back(5 + i);
    const std::vector<SequenceId> sequences(kCells, SequenceId{0});
    const InputRows input[] = {
        {.count = kCells, .values = rows->Row(0), .see_each_other = see_each_other}};
    ASSERT_TRUE(alone_
                    ->Forward({.tokens = whole.pictures[0].picture->ids(),
                               .positions = positions,
                               .sequences = sequences,
                               .rows = input})
                    .ok());
    Row row(static_cast<std::size_t>(alone_->vocabulary_size()));
    const std::int32_t first[] = {0};
    ASSERT_TRUE(alone_->Logits(first, row.data()).ok());
    logits.push_back(std::move(row));
  }
  EXPECT_NE(logits[0], logits[1]);
}

TEST_P(PictureSchedulerTest, TheSamePictureAgainNeedsNoTowerAndNoPrefill) {
  StartPictures(1);
  const PicturePrompt prompt = Make({{SomeTokens(37)}, {{}, Named("a")}, {SomeTokens(40, 40)}});
  AskPictures(prompt, 3);
  RunAll();
  EXPECT_EQ(counts_->begun, 1);
  const Asked& again = AskPictures(prompt, 3);
  RunAll();
  EXPECT_EQ(counts_->begun, 1);
  EXPECT_EQ(again.result.reuse.tower_runs, 0);
  EXPECT_EQ(again.result.reuse.restored, 37 + kCells + 40 - 1);
  // A longer text with the picture in the same place.
  PicturePrompt longer = prompt;
  longer.tokens.resize(37 + kCells + 35);
  longer.tokens.push_back(7);
  const Asked& other = AskPictures(longer, 3);
  RunAll();
  EXPECT_EQ(counts_->begun, 1);
  EXPECT_GE(other.result.reuse.restored, 37 + kCells);
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
  ExpectNothingLeaks();
}

TEST_P(PictureSchedulerTest, AnotherPictureInTheSamePlaceIsAMissThere) {
  StartPictures(1);
  AskPictures(Make({{SomeTokens(37)}, {{}, Named("a")}, {SomeTokens(10, 40)}}), 3);
  RunAll();
  const Asked& other =
      AskPictures(Make({{SomeTokens(37)}, {{}, Named("b")}, {SomeTokens(10, 40)}}), 3);
  RunAll();
  const ReuseReport& reuse = other.result.reuse;
  EXPECT_EQ(reuse.matched, 37);
  EXPECT_EQ(reuse.difference.position, 37);
  EXPECT_EQ(reuse.tower_runs, 1);
  ASSERT_FALSE(reuse.missed.empty());
  EXPECT_EQ(reuse.missed.back().reason, MissReason::kOtherPicture);
  EXPECT_EQ(reuse.missed.back().tokens, kCells + 10);
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
}

TEST_P(PictureSchedulerTest, AMatchNeverEndsInsideAPicture) {
  StartPictures(1);
  const PicturePrompt first = Make({{SomeTokens(37)}, {{}, Named("a")}});
  AskPictures(Make({{SomeTokens(37)}, {{}, Named("a")}, {SomeTokens(10, 40)}}), 3);
  RunAll();
  const Asked& ends = AskPictures(first, 3);  // its last cell is evaluated again, so all are
  RunAll();
  EXPECT_EQ(ends.result.reuse.matched, 37);
  EXPECT_LE(ends.result.reuse.restored, 37);
  EXPECT_EQ(ends.result.reuse.tower_runs, 0);  // the rows were kept
  EXPECT_EQ(counts_->begun, 1);
  ExpectExactPictures(ends);
}

TEST_P(PictureSchedulerTest, InCompanyOfDecodesAndOtherPictures) {
  StartPictures(4);
  for (const int max_tokens : {30, 12})
    AskPictures(Make({{SomeTokens(20, max_tokens)}}), max_tokens);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(*scheduler_->Step());
  const std::string files[] = {"a", "b", "a", "c"};
  for (int i = 0; i < 4; ++i) {
    AskPictures(Make({{SomeTokens(7 + i, 90 + i)},
                      {{}, Named(files[i])},
                      {SomeTokens(5, 60)},
                      {{}, Named("d", false)},
                      {SomeTokens(3 + i, 30)}}),
                6);
  }
  RunAll();
  EXPECT_EQ(counts_->begun, 4);
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
  ExpectNothingLeaks();
}

TEST_P(PictureSchedulerTest, PicturesAsLargeAsAStepAlternateWithDecodes) {
  StartPictures(3);
  AskPictures(Make({{SomeTokens(20)}}), 60);
  AskPictures(Make({{SomeTokens(20, 9)}}), 60);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(*scheduler_->Step());
  const Asked& large = AskPictures(Make({{SomeTokens(7, 90)}, {{}, "x whole 32"}, {{5}}}), 3);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_TRUE(large.done);
  RunAll();
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
}

// The steps of its tower take 60 ms each.
TEST_P(PictureSchedulerTest, AStepOfTheSchedulerEndsThoughALoneRequestsTowerDoesNot) {
  double now = 0.0;
  Start(2, 0, {.step_ms = 100, .clock = [&] { return now; }});
  auto tower = std::make_unique<ScriptedTower>(engine_->info().hidden_size, 9);
  tower->OnStep([&] { now += 0.06; });
  counts_ = tower->shared_counts();
  ASSERT_TRUE(engine_->UseTower(std::move(tower)).ok());
  AskPictures(Make({{{}, Named("a")}, {SomeTokens(3)}}), 3);
  ASSERT_TRUE(*scheduler_->Step());
  EXPECT_EQ(counts_->steps, 2);
  AskPictures(Make({{SomeTokens(9)}}), 1);  // it need not wait for the tower
  while (!asked_[1]->done) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_FALSE(asked_[0]->done);
  EXPECT_LT(counts_->steps, 9);
  RunAll();
  EXPECT_EQ(counts_->begun, 1);
  EXPECT_EQ(counts_->steps, 9);
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
}

TEST_P(PictureSchedulerTest, FailuresEndOneRequest) {
  Start(2, 0);
  auto tower = std::make_unique<ScriptedTower>(engine_->info().hidden_size);
  const PicturePrompt prompt = Make({{SomeTokens(7)}, {{}, Named("a")}, {{5}}});
  tower->FailAt(prompt.pictures[0].picture->name());
  ASSERT_TRUE(engine_->UseTower(std::move(tower)).ok());
  const Asked& fails = AskPictures(prompt, 3);
  const Asked& works = AskPictures(Make({{SomeTokens(7)}, {{}, Named("b")}, {{5}}}), 3);
  RunAll();
  EXPECT_EQ(fails.result.status.message(), "the tower fails");
  ExpectExactPictures(works);
}

TEST_P(PictureSchedulerTest, RefusesIdsWithoutTheirPicture) {
  StartPictures(1);
  const PicturePrompt prompt = Make({{SomeTokens(7)}, {{}, Named("a")}, {{5}}});
  ScheduledRequest request{.prompt = prompt.tokens};
  EXPECT_EQ(scheduler_->Submit(request).status().code(), StatusCode::kInvalidArgument);
  request.pictures = prompt.pictures;
  ++request.pictures[0].begin;
  EXPECT_EQ(scheduler_->Submit(request).status().code(), StatusCode::kInvalidArgument);
  const PicturePrompt large = Make({{SomeTokens(7)}, {{}, "l whole 33"}, {{5}}});
  request = {.prompt = large.tokens, .pictures = large.pictures};
  EXPECT_EQ(scheduler_->Submit(request).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(PictureSchedulerTest, AFullContextIsShiftedByWholePictures) {
  StartPictures(1);
  const Asked& asked = AskPictures(
      Make({{SomeTokens(100)}, {{}, Named("a")}, {SomeTokens(100, 40)}, {{}, Named("b")}, {{4}}}),
      100);
  RunAll();
  ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
  if (has_axes()) {
    EXPECT_EQ(asked.result.stop, StopReason::kLength);  // nothing can be moved
    EXPECT_EQ(asked.result.shifts, 0);
  } else {
    EXPECT_GE(asked.result.shifts, 1);
  }
}

// A process that was started again restores a prompt with a picture: its tower has nothing to do.
TEST_P(PictureSchedulerTest, AStoreBringsBackPromptsWithPictures) {
  const TestDirectory directory;
  const auto restart = [&] {
    StartPictures(1);
    auto disk = OpenDiskStore({.directory = directory.path()});
    ASSERT_TRUE(disk.ok()) << disk.status().message();
    scheduler_.reset();
    ASSERT_TRUE(engine_->UseStore(std::shared_ptr<Store>(std::move(*disk))).ok());
    scheduler_ = std::move(Scheduler::Make(*engine_, {.recompute_bound = 32})).value();
  };
  const PicturePrompt prompt = Make({{SomeTokens(55)}, {{}, Named("a")}, {SomeTokens(80, 40)}});
  restart();
  AskPictures(prompt, 3);
  RunAll();
  EXPECT_EQ(engine_->FlushStore(), "");
  restart();
  const Asked& again = AskPictures(prompt, 3);
  RunAll();
  EXPECT_EQ(counts_->begun, 0);
  EXPECT_GE(again.result.reuse.stored, 55 + kCells);
  EXPECT_EQ(again.result.reuse.store_problem, "");
  // Pieces end at 64 tokens, inside the picture: this text restores what is before it.
  PicturePrompt cut = prompt;
  cut.tokens.resize(55 + kCells);
  cut.tokens.push_back(3);
  cut.tokens.push_back(9);
  const Asked& other = [&]() -> const Asked& {
    restart();
    return AskPictures(cut, 3);
  }();
  RunAll();
  EXPECT_LE(counts_->begun, 1);
  const ReuseReport& reuse = other.result.reuse;
  EXPECT_TRUE(reuse.restored <= 55 || reuse.restored >= 55 + kCells) << reuse.restored;
  EXPECT_EQ(reuse.restored + reuse.computed, reuse.prompt);
  for (const auto& asked : asked_) ExpectExactPictures(*asked);
}

// Two pieces come from memory and one from the disk; the last one ends in a picture.
TEST_P(PictureSchedulerTest, WhatIsGivenBackOfAPictureIsOfTheLastTier) {
  const TestDirectory directory;
  const std::shared_ptr<Store> memory = std::move(*MakeMemoryStore());
  const std::shared_ptr<Store> disk = std::move(*OpenDiskStore({.directory = directory.path()}));
  const auto restart = [&](std::shared_ptr<Store> store) {
    StartPictures(1);
    scheduler_.reset();
    ASSERT_TRUE(engine_->UseStore(std::move(store)).ok());
    scheduler_ = std::move(Scheduler::Make(*engine_, {.recompute_bound = 32})).value();
  };
  PicturePrompt prompt = Make({{SomeTokens(180)}, {{}, Named("a")}, {SomeTokens(40, 40)}});
  restart(memory);
  Ask(Tokens(prompt.tokens.begin(), prompt.tokens.begin() + 130), 1);
  RunAll();
  EXPECT_EQ(engine_->FlushStore(), "");
  restart(disk);
  AskPictures(prompt, 1);
  RunAll();
  EXPECT_EQ(engine_->FlushStore(), "");
  prompt.tokens.resize(180 + kCells);
  prompt.tokens.insert(prompt.tokens.end(), {3, 9});
  restart(std::move(*MakeTieredStore({memory, disk}, MoveObjects::kNo)));
  const Asked& asked = AskPictures(prompt, 3);
  RunAll();
  const ReuseReport& reuse = asked.result.reuse;
  EXPECT_EQ(std::reduce(reuse.tiers.begin(), reuse.tiers.end()), reuse.stored);
  if (!has_windows()) {
    EXPECT_EQ(reuse.tiers, (TokensByTier{128, 180 - 128, 0}));
  }
  ExpectExactPictures(asked);
}

TEST_P(PictureSchedulerTest, DraftsBehindPicturesChangeNothing) {
  StartPictures(2, {.look_up_drafts = true});
  const PicturePrompt prompt = Make({{SomeTokens(11)}, {{}, Named("a")}, {SomeTokens(9, 40)}});
  for (int i = 0; i < 3; ++i) AskPictures(prompt, 30);
  AskPictures(Make({{SomeTokens(30)}, {{}, Named("b")}, {SomeTokens(9, 40)}}), 30);
  RunAll();
  std::int64_t drafted = 0;
  for (const auto& asked : asked_) {
    ExpectExactPictures(*asked);
    drafted += asked->result.speculation.drafted;
  }
  EXPECT_GT(drafted, 0);
}

TEST_P(PictureSchedulerTest, LittleMemoryParksRequestsWithPictures) {
  Start(3, 150);
  counts_ = GiveTower(*engine_);
  for (int i = 0; i < 4; ++i) {
    AskPictures(Make({{SomeTokens(20 + i, 5 + 40 * i)},
                      {{}, Named(std::string(1, static_cast<char>('a' + i)))},
                      {SomeTokens(9, 40)}}),
                40);
  }
  RunAll();
  std::int64_t parked = 0;
  for (const auto& asked : asked_) {
    ExpectExactPictures(*asked);
    parked += asked->result.reuse.parked;
  }
  EXPECT_TRUE(parked > 0 || has_windows());
}

// Ids do not tell a picture's grid, nor where it ends.
TEST_P(PictureSchedulerTest, ASessionRestoresNoPictures) {
  Session session(*alone_, SequenceId{0});
  const PicturePrompt prompt = Make({{SomeTokens(7)}, {{}, Named("a")}});
  ASSERT_TRUE(session.Append(std::span(prompt.tokens).first(7)).ok());
  ASSERT_TRUE(session.AppendPicture(prompt.pictures[0].picture).ok());
  const auto snapshot =
      alone_->cache().snapshots()->TakeSnapshot(session.sequence(), 0, 7 + kCells);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  const Status status = session.Restore(snapshot->get(), prompt.tokens);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(status.message().starts_with("token 7 is -")) << status.message();
  EXPECT_EQ(session.position(), 7 + kCells);  // as before
  EXPECT_TRUE(session.Append(SomeTokens(3)).ok());
  ASSERT_TRUE(session.Truncate(9).ok());
  EXPECT_EQ(session.position(), 7);
}

// The same rows in another grid are at other positions.
TEST_P(PictureSchedulerTest, TheGridDecidesPositionsWithThreeAxes) {
  const std::vector<std::int32_t> text = SomeTokens(5);
  std::vector<Row> logits;
  for (const PictureShape& shape :
       {PictureShape{.cells = 16, .columns = 8, .rows = 2},
        PictureShape{.cells = 16, .columns = 4, .rows = 4}, PictureShape{.cells = 16}}) {
    const auto picture = std::make_shared<Picture>(Sha256Hash{}, shape);
    Session session(*alone_, SequenceId{0});
    ASSERT_TRUE(session.Append(text).ok());
    ASSERT_TRUE(session.AppendPicture(picture).ok());
    ASSERT_TRUE(session.Append(text).ok());
    const auto row = *session.LastLogits();
    logits.emplace_back(row.begin(), row.end());
  }
  EXPECT_EQ(logits[0] != logits[1], has_axes());
  EXPECT_EQ(logits[0] != logits[2], has_axes());
}

INSTANTIATE_TEST_SUITE_P(Models, PictureSchedulerTest, ::testing::Values("full", "windows", "axes"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace kvcache
