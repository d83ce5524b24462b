#include "kvcache/recurrent_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/recurrent/recurrent_cache_impl.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::recurrent_cache_test {
namespace {

using testing::ReferenceBackend;
using testing::StartForward;
using testing::TestToken;
using Tokens = std::vector<TestToken>;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr int kLayer = 2;
constexpr std::int64_t kDims[] = {2, 2};

// The first value of a state is the sum of the contents of all its tokens.
class RecurrentCacheTest : public ::testing::Test {
 protected:
  void Open(RecurrentOptions options, int sequences = 3, int max_batch = 64) {
    options.layers = {kLayer};
    options.state_size = 4;
    options.attention.shift_keys = [](int, const LayerKv&, std::span<const CellRun>, Position) {
      return Status::Ok();
    };
    cache_ = MakeRecurrentCache(std::move(options));
    const Status status =
        cache_->Init(backend_, {DType::kF32, DType::kF32, sequences, 10000, max_batch});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Runs a pass. Returns the states before it, or the error.
  std::string Forward(const Tokens& tokens) {
    if (const Status status = StartForward(*cache_, tokens); !status.ok()) return status.message();
    return Advance(tokens);
  }
  std::string Advance(const Tokens& tokens) {
    auto state = cache_->RecurrentState(kLayer, kDims);
    auto next = cache_->NextRecurrentState(kLayer, kDims);
    if (!state.ok() || !next.ok()) return "no state";
    std::string text;
    for (std::size_t i = 0; i < cache_->Sequences().size(); ++i) {
      const float before = First(*state, i);
      First(*next, i) = before;
      for (const TestToken& token : tokens) {
        if (SequenceId{token.sequence} == cache_->Sequences()[i]) {
          First(*next, i) += static_cast<float>(token.content);
        }
      }
      text += (text.empty() ? "" : " ") + std::to_string(static_cast<int>(before));
    }
    const Status status = cache_->UpdateRecurrentState(kLayer, *next);
    return status.ok() ? text : status.message();
  }
  static float& First(const TensorView& view, std::size_t i) {
    return *reinterpret_cast<float*>(view.data +
                                     static_cast<std::int64_t>(i) * view.stride_bytes[2]);
  }
  // Evaluates one token per pass, each with content 1: after p tokens the state is p.
  void Decode(int sequence, Position begin, Position end) {
    for (Position p = begin; p < end; ++p) {
      ASSERT_EQ(Forward({{sequence, p, 1}}), std::to_string(p));
    }
  }

  ReferenceBackend backend_;
  std::unique_ptr<RecurrentCache> cache_;
};

TEST_F(RecurrentCacheTest, StatesAreTheSequencesOwn) {
  Open({});
  EXPECT_EQ(Forward({{0, 0, 1}, {0, 1, 2}, {1, 0, 10}, {1, 1, 20}}), "0 0");
  EXPECT_EQ(cache_->TokensPerSequence(), 2);
  EXPECT_EQ(Forward({{1, 2, 40}, {0, 2, 4}}), "30 3");
  EXPECT_EQ(Forward({{2, 0, 7}}), "0") << "a new state is zeros";
  EXPECT_EQ(Forward({{0, 3, 8}, {1, 3, 80}, {2, 1, 0}}), "7 70 7");
}

TEST_F(RecurrentCacheTest, AForkSharesTheStateAndGoesItsOwnWay) {
  Open({});
  Decode(0, 0, 3);
  const std::int64_t bytes = cache_->memory()->AllocatedBytes();
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 3).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), bytes);
  EXPECT_EQ(Forward({{1, 3, 100}}), "3");
  EXPECT_EQ(Forward({{0, 3, 1}}), "3");
  EXPECT_EQ(Forward({{0, 4, 1}, {1, 4, 1}}), "4 103");
}

TEST_F(RecurrentCacheTest, AForkAtAnEarlierTokenNeedsARestore) {
  Open({.checkpoints = {.spacing = 10, .minimum = 4}});
  Decode(0, 0, 9);
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 7).ok());
  EXPECT_EQ(Forward({{1, 7, 1}}),
            "sequence 1 has no recurrent state for its 7 tokens; PrepareRestore and Remove first");
  EXPECT_EQ(*cache_->PrepareRestore(kSecond, 7), 5) << "the checkpoint at position 4";
  ASSERT_TRUE(cache_->Remove(kSecond, 5, kEndOfSequence).ok());
  Decode(1, 5, 7);
  EXPECT_EQ(Forward({{0, 9, 1}}), "9");
}

TEST_F(RecurrentCacheTest, CheckpointsOfTheDefaults) {
  Open({});
  const CheckpointOptions defaults;
  EXPECT_EQ(defaults.count, 24);
  EXPECT_EQ(defaults.spacing, 1664);
  EXPECT_EQ(defaults.minimum, 16);
  for (Position p = 0; p < 6400; p += 64) {
    Tokens tokens;
    for (int i = 0; i < 64; ++i) tokens.push_back({0, p + i, 1});
    ASSERT_EQ(Forward(tokens), std::to_string(p));
  }
  // Checkpoints at 63, then at ends of passes at least 1,664 later: 1,727, 3,391, 5,055.
  EXPECT_FALSE(cache_->CanResume(kFirst, 63));
  EXPECT_TRUE(cache_->CanResume(kFirst, 64));
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 63), 0);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 1727), 64);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 1728), 1728);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5055), 3392);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6399), 6336) << "the state before the last pass";
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 7000), 6400) << "the state itself";
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6000), 5056);
  ASSERT_TRUE(cache_->Remove(kFirst, 5056, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{0, 5056, 1}}), "5056");
}

TEST_F(RecurrentCacheTest, TheOldestCheckpointGoesFirst) {
  Open({.checkpoints = {.count = 2, .spacing = 2, .minimum = 1}});
  Decode(0, 0, 9);  // after 2, 4, 6 and 8 tokens; before the last pass: 8
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 8), 8);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 7), 6);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5), 0);
}

TEST_F(RecurrentCacheTest, OnlyPreparedTruncations) {
  Open({.checkpoints = {.spacing = 4, .minimum = 2}});
  Decode(0, 0, 8);  // checkpoints after 3 and 7
  const Status status = cache_->Remove(kFirst, 3, kEndOfSequence);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      status.message(),
      "sequence 0 cannot go back from 8 tokens to 3; call PrepareRestore first and use the length "
      "that it returns");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5), 3);
  EXPECT_EQ(cache_->Remove(kFirst, 5, kEndOfSequence).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(cache_->Remove(kFirst, 3, kEndOfSequence).ok());
  Decode(0, 3, 6);
  ASSERT_TRUE(cache_->Remove(kFirst, 0, kEndOfSequence).ok()) << "the whole never fails";
  Decode(0, 0, 2);
  // Another pass of the sequence cancels the prepared restore.
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 1), 1);
  Decode(0, 2, 3);
  EXPECT_EQ(cache_->Remove(kFirst, 1, kEndOfSequence).code(), StatusCode::kUnsupported);
}

TEST_F(RecurrentCacheTest, APassThatBrokeOffIsTakenBack) {
  Open({});
  Decode(0, 0, 3);
  ASSERT_TRUE(StartForward(*cache_, {{0, 3, 5}, {0, 4, 5}}).ok());  // and no update
  EXPECT_EQ(
      Forward({{0, 5, 1}}),
      "sequence 0 holds 5 tokens, its recurrent state 3; Remove the tokens of the pass that broke "
      "off");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 3), 3);
  ASSERT_TRUE(cache_->Remove(kFirst, 3, kEndOfSequence).ok());
  Decode(0, 3, 4);
  // A complete pass can also be taken back until the next one begins.
  EXPECT_EQ(Forward({{0, 4, 9}, {0, 5, 9}}), "4");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 4), 4);
  ASSERT_TRUE(cache_->Remove(kFirst, 4, kEndOfSequence).ok());
  Decode(0, 4, 6);
}

TEST_F(RecurrentCacheTest, CheckpointsAreChosenBeforeInit) {
  RecurrentOptions options;
  options.layers = {kLayer};
  options.state_size = 4;
  cache_ = MakeRecurrentCache(options);
  ASSERT_TRUE(cache_->SetCheckpoints({.spacing = 3, .minimum = 1}).ok());
  ASSERT_TRUE(cache_->Init(backend_, {DType::kF32, DType::kF32, 1, 100, 64}).ok());
  Decode(0, 0, 9);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6), 5) << "checkpoints after 2, 5, 8";
  EXPECT_EQ(cache_->SetCheckpoints({}).message(), "SetCheckpoints after Init; call it before");
}

TEST_F(RecurrentCacheTest, MiddleRemovalMovesCheckpoints) {
  Open({.checkpoints = {.spacing = 2, .minimum = 1}});
  Decode(0, 0, 9);  // checkpoints after 2, 4, 6, 8
  ASSERT_TRUE(cache_->Remove(kFirst, 3, 5).ok());
  // The checkpoint after 2 stays, the one after 4 is dropped, those after 6 and 8 are now at 4
  // and 6.
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 3), 2);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5), 4);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6), 6);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 7), 7);
  EXPECT_EQ(Forward({{0, 7, 1}}), "9") << "what the state took in stays in it";
}

TEST_F(RecurrentCacheTest, Layouts) {
  Open({});
  const struct {
    Tokens tokens;
    std::string message;
  } kCases[] = {
      {{{0, 0}, {1, 0}, {0, 1}, {1, 1}},
       "recurrent layers: sequence 0 has tokens in two places of the batch; must be neighbours"},
      {{{0, 1}, {0, 0}}, "recurrent layers: sequence 0 has position 0 after 1; must be ascending"},
  };
  for (const auto& c : kCases) {
    const Status status = StartForward(*cache_, c.tokens);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_EQ(status.message(), c.message);
  }
  Decode(0, 0, 1);
  EXPECT_EQ(Forward({{0, 4, 1}}), "1") << "a gap in positions is the model's affair";
  EXPECT_EQ(Forward({{0, 2, 1}}),
            "sequence 0 continues at position 2, its recurrent state is at 5; must not be lower");
}

TEST_F(RecurrentCacheTest, NoStateLeft) {
  Open({.max_states = 2});
  EXPECT_EQ(Forward({{0, 0, 1}, {1, 0, 1}}), "0 0");
  const Status status = StartForward(*cache_, {{2, 0, 1}});
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(), "the batch of 1 sequences needs 3 recurrent states; max_states is 2");
  ASSERT_TRUE(cache_->Remove(kSecond, 0, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{2, 0, 1}}), "0");
}

TEST_F(RecurrentCacheTest, Refusals) {
  Open({.conv_dim = 3, .conv_channels = 2});
  EXPECT_EQ(cache_->ConvState(kLayer).status().message(),
            "a recurrent state outside a forward pass; call StartForward first");
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {1, 0}}).ok());
  EXPECT_EQ(cache_->ConvState(0).status().message(), "layer 0 is not in RecurrentOptions::layers");
  EXPECT_EQ(cache_->ConvState(kLayer)->dims, (std::array<std::int64_t, 4>{3, 2, 2, 1}));
  EXPECT_EQ(cache_->RecurrentState(kLayer, {2, 3}).status().message(),
            "the state's dims are [2, 3]; must be at most 3 with product 4");
  EXPECT_EQ(cache_->NextRecurrentState(kLayer, {1, 2, 2, 1}).status().message(),
            "the state's dims are [1, 2, 2, 1]; must be at most 3 with product 4");
  float data[12] = {};
  EXPECT_EQ(cache_->UpdateRecurrentState(kLayer, TensorView::Dense(data, DType::kF32, 4)).message(),
            "the state's dims are [4, 1, 1, 1]; must be 4 dense values for each of 2 sequences");
  EXPECT_TRUE(
      cache_->UpdateRecurrentState(kLayer, TensorView::Dense(data, DType::kF32, 2, 2, 2)).ok());

  const struct {
    RecurrentOptions options;
    std::string message;
  } kCases[] = {
      {{.layers = {-1}, .state_size = 1}, "recurrent layer -1 is not in [0, 4096)"},
      {{.layers = {1, 1}, .state_size = 1}, "layer 1 is listed twice in RecurrentOptions::layers"},
      {{.layers = {1}},
       "recurrent layers without a state; set conv_dim and conv_channels, or state_size"},
      {{.layers = {1}, .conv_dim = 2},
       "conv_dim is 2, conv_channels is 0, state_size is 0; must be at least 0, and the first two "
       "both 0 or neither"},
      {{.layers = {1}, .state_size = 1, .max_states = 9},
       "max_states is 9; must be in [0, max_sequences], here [0, 2]"},
      {{.layers = {1}, .state_size = 1, .checkpoints = {.spacing = 0}},
       "checkpoints: count is 24, spacing is 0, minimum is 16; must be at least 0, 1 and 0"},
  };
  for (const auto& c : kCases) {
    const auto cache = MakeRecurrentCache(c.options);
    EXPECT_EQ(cache->Init(backend_, {DType::kF32, DType::kF32, 2, 8, 2}).message(), c.message);
  }
  cache_->Close();
  EXPECT_EQ(backend_.live_bytes(), 0);
  EXPECT_EQ(cache_->ConvState(kLayer).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::recurrent_cache_test
