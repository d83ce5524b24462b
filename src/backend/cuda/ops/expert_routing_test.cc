// Compares experts on the device with the CPU backend's calls, bit by bit.
#include "backend/cuda/ops/expert_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "backend/cpu/testing.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::expert_routing_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

class CudaExpertRouting : public ::testing::TestWithParam<int> {
 protected:
  static constexpr std::int64_t kMostTokens = 40;

  void Make(int experts, int chosen) {
    sizes_ = {.tokens = kMostTokens, .experts = experts, .chosen = chosen};
    auto made = CudaRouting::Make(both_.device(), both_.memory(), sizes_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    routing_ = std::move(made).value();
  }

  // Routes a batch, and groups what the CPU backend chooses.
  void Route(std::int64_t batch, bool with_factors) {
    batch_ = batch;
    slots_ = batch * sizes_.chosen;
    const Mirror logits = both_.Tensor({sizes_.experts, batch, 1});
    const RouterOptions options{.chosen = sizes_.chosen, .scale = 1.5f};
    std::vector<std::int32_t> choices(static_cast<std::size_t>(slots_));
    weights_.resize(choices.size());
    ASSERT_TRUE(cpu_.Route(logits.host, options, choices, weights_).ok());
    std::vector<float> factors;
    if (with_factors) factors = both_.Values(sizes_.experts);
    const Status status = routing_->Route(logits.device, options, factors);
    ASSERT_TRUE(status.ok()) << status.message();
    if (with_factors) {
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        weights_[i] *= factors[static_cast<std::size_t>(choices[i])];
      }
    }
    Sort(choices);
  }

  void Sort(const std::vector<std::int32_t>& choices) {
    std::vector<std::int32_t> order(choices.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](std::int32_t i) { return choices[static_cast<std::size_t>(i)]; });
    slot_of_choice_.resize(order.size());
    tokens_.clear();
    experts_.clear();
    for (std::size_t slot = 0; slot < order.size(); ++slot) {
      const auto i = static_cast<std::size_t>(order[slot]);
      slot_of_choice_[i] = static_cast<std::int32_t>(slot);
      tokens_.push_back(static_cast<std::int32_t>(i) / sizes_.chosen);
      experts_.push_back(choices[i]);
    }
  }

  Mirror Columns(std::int64_t width, std::int64_t gap = 0) {
    return both_.Tensor({width, slots_, 1}, Content::kNumbers, gap);
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  RoutingSizes sizes_;
  std::unique_ptr<ExpertRouting> routing_;
  std::int64_t batch_ = 0;
  std::int64_t slots_ = 0;
  std::vector<float> weights_;                // [chosen, batch]
  std::vector<std::int32_t> slot_of_choice_;  // [chosen, batch]
  std::vector<std::int32_t> tokens_;          // of slots
  std::vector<std::int32_t> experts_;         // of slots
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaExpertRouting, ::testing::Range(1, 4));

TEST_P(CudaExpertRouting, SlotsAreSortedByExpertAndThenByToken) {
  for (const int experts : {1, 8, 33, 70}) {
    Make(experts, both_.Draw(1, std::min(experts, 9)));
    for (const std::int64_t batch : {1, 7, 40}) {
      Route(batch, false);
      const Result<ExpertSlots> slots = routing_->Slots();
      ASSERT_TRUE(slots.ok());
      EXPECT_TRUE(std::ranges::equal(slots.value().tokens, tokens_)) << experts << ", " << batch;
      EXPECT_TRUE(std::ranges::equal(slots.value().experts, experts_)) << experts << ", " << batch;
      both_.Forget();
    }
  }
}

TEST_P(CudaExpertRouting, GathersAndScales) {
  Make(12, 3);
  for (const std::int64_t width : {1, 6, 64, 1032}) {
    for (const std::int64_t gap : {0, 1, 4}) {
      Route(both_.Draw(1, 9), false);
      const Mirror x = both_.Tensor({width, batch_, 1}, Content::kSpecial, gap);
      const Mirror table = both_.Tensor({width, 12, 1}, Content::kSpecial);
      const Mirror columns = Columns(width, gap);
      const Mirror rows = Columns(width);
      const std::vector<float> factors = both_.Values(12, Content::kSpecial);
      std::vector<float> of_slots;
      for (const std::int32_t e : experts_)
        of_slots.push_back(factors[static_cast<std::size_t>(e)]);
      const std::string what = "width " + std::to_string(width) + ", gap " + std::to_string(gap);
      ExpectSameStatus(cpu_.Embed(x.host, tokens_, columns.host),
                       routing_->GatherTokens(x.device, columns.device), what);
      ExpectSameStatus(cpu_.Embed(table.host, experts_, rows.host),
                       routing_->GatherExperts(table.device, rows.device), what);
      ExpectSameStatus(cpu_.ScaleColumns(columns.host, of_slots),
                       routing_->ScaleByExpert(columns.device, factors), what);
      both_.ExpectSame(what);
      both_.Forget();
    }
  }
}

TEST_P(CudaExpertRouting, GathersRowsOfTablesOfAnyType) {
  Make(11, 2);
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    Route(5, false);
    const std::vector<std::byte> bytes = cpu::testing::RandomWeights(type, 256 * 11, 3);
    const auto buffer = both_.device().Allocate(bytes.size()).value();
    ASSERT_TRUE(both_.device().CopyIn(bytes, buffer->data()).ok());
    const Mirror rows = Columns(256);
    const auto table = [&](const std::byte* data) {
      return TensorView::Dense(data, type, 256, 11);
    };
    ExpectSameStatus(cpu_.Embed(table(bytes.data()), experts_, rows.host),
                     routing_->GatherExperts(table(buffer->data()), rows.device), "table");
    both_.ExpectSame(std::string(InfoOf(type).name));
    both_.Forget();
  }
}

TEST_P(CudaExpertRouting, WeighsInputsOrResults) {
  Make(20, 4);
  for (int i = 0; i < 8; ++i) {
    Route(both_.Draw(1, 12), i % 4 < 2);
    const Mirror columns = Columns(36);
    const Mirror out = both_.Tensor({36, batch_, 1});
    const std::string what = "round " + std::to_string(i);
    if (i % 2 == 0) {
      std::vector<float> of_slots(weights_.size());
      for (std::size_t c = 0; c < weights_.size(); ++c) {
        of_slots[static_cast<std::size_t>(slot_of_choice_[c])] = weights_[c];
      }
      ExpectSameStatus(cpu_.ScaleColumns(columns.host, of_slots),
                       routing_->WeighInputs(columns.device), what);
      std::ranges::fill(weights_, 1.0f);
    }
    ExpectSameStatus(cpu_.Combine(columns.host, slot_of_choice_, weights_, out.host),
                     routing_->Combine(columns.device, out.device), what);
    both_.ExpectSame(what);
    both_.Forget();
  }
}

// A stack of matrices for both backends.
struct MirroredStack {
  std::vector<std::byte> bytes;
  std::unique_ptr<LinearWeight> host, device;
};

MirroredStack MakeStack(BothBackends& both, DType type, std::array<std::int64_t, 3> dims) {
  MirroredStack stack;
  stack.bytes = cpu::testing::RandomWeights(type, dims[0] * dims[1] * dims[2],
                                            static_cast<std::uint32_t>(both.Draw(0, 1000)));
  const TensorView view = TensorView::Dense(stack.bytes.data(), type, dims[0], dims[1], dims[2]);
  stack.host = std::move(both.cpu().MakeLinear(view)).value();
  stack.device = std::move(MakeLinear(both.device(), view)).value();
  return stack;
}

// Gate and up lie side by side in one stack, and another matrix has its own; the experts' inputs are all different,
// or one column for all.
TEST_P(CudaExpertRouting, ProductsHaveTheBitsOfLinear) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const std::int64_t batch : {1, 9, 40}) {
      if (batch == 40 && type != DType::kF16 && type != DType::kQ4_K) continue;
      // With many experts, the lists of tasks are longer than a block of threads; with few, products have many columns.
      const int experts =
          type == DType::kF32 && batch > 1 ? 300 : both_.Draw(3, batch == 40 ? 3 : 9);
      Make(experts, both_.Draw(1, 3));
      Route(batch, false);
      const std::int64_t inputs = type == DType::kF32 ? 12 : 256;
      const MirroredStack pairs = MakeStack(both_, type, {inputs, 20, 2 * experts});
      const MirroredStack single = MakeStack(both_, DType::kF32, {inputs, 7, experts});
      const bool one_column = batch == 1 && both_.Draw(0, 1) == 0;
      const Mirror x = one_column ? both_.Tensor({inputs, 1, 1}) : Columns(inputs);
      const Mirror gate = Columns(20), up = Columns(20), other = Columns(7);
      const ExpertOutput outputs[] = {{pairs.device.get(), gate.device, 0, 2},
                                      {pairs.device.get(), up.device, 1, 2},
                                      {single.device.get(), other.device}};
      const Status status = routing_->Linear(x.device, outputs);
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::int64_t slot = 0; slot < slots_; ++slot) {
        const auto column = [&](const TensorView& of) {
          return TensorView::Dense(of.data + (of.dims[1] == 1 ? 0 : slot) * of.stride_bytes[1],
                                   DType::kF32, of.dims[0], 1);
        };
        const std::int64_t expert = experts_[static_cast<std::size_t>(slot)];
        const LinearOutput expected[] = {{pairs.host.get(), column(gate.host), 2 * expert},
                                         {pairs.host.get(), column(up.host), 2 * expert + 1},
                                         {single.host.get(), column(other.host), expert}};
        ASSERT_TRUE(cpu_.Linear(column(x.host), expected).ok());
      }
      both_.ExpectSame(std::string(InfoOf(type).name) + ", batch " + std::to_string(batch));
      both_.Forget();
    }
  }
}

TEST_P(CudaExpertRouting, ProductsOfWrongShapesAreRefused) {
  Make(4, 2);
  Route(3, false);
  const MirroredStack stack = MakeStack(both_, DType::kF32, {16, 5, 4});
  const Mirror x = Columns(16);
  const Mirror y = Columns(5);
  const Mirror wide = Columns(6);
  const auto is_refused = [&](const TensorView& of, const ExpertOutput& output,
                              const std::string& text) {
    const Status status = routing_->Linear(of, {&output, 1});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  is_refused(both_.Tensor({16, 5, 1}).device, {stack.device.get(), y.device}, "each of 6 slots");
  is_refused(both_.Tensor({16, 1, 1}).device, {stack.device.get(), y.device}, "one token, of 3");
  is_refused(x.device, {stack.device.get(), wide.device}, "4 matrices of [16, 5]");
  is_refused(x.device, {stack.device.get(), y.device, 1}, "each 1, from 1 on");
  is_refused(x.device, {stack.host.get(), y.device}, "not the device's");
}

TEST_P(CudaExpertRouting, ErrorsNameTheShapes) {
  Make(8, 2);
  Route(3, false);
  const Mirror wrong = both_.Tensor({16, 5, 1});
  const Mirror columns = Columns(16);
  const Mirror x = both_.Tensor({16, 3, 1});
  const auto is_refused = [](const Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  is_refused(routing_->GatherTokens(x.device, wrong.device), "f32 [16, 5]; must be");
  is_refused(routing_->GatherTokens(wrong.device, columns.device), "each of 3 tokens");
  is_refused(routing_->GatherExperts(x.device, columns.device), "each of 8 experts");
  is_refused(routing_->ScaleByExpert(columns.device, std::vector<float>(7)), "7 factors");
  is_refused(routing_->Combine(columns.device, wrong.device), "each of 3 tokens");
  is_refused(routing_->WeighInputs(wrong.device), "each of 6 slots");
  const Mirror logits = both_.Tensor({9, 3, 1});
  is_refused(routing_->Route(logits.device, {.chosen = 2}, {}), "2 of 8 experts");
}

}  // namespace
}  // namespace kvcache::cuda::expert_routing_test
