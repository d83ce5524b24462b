// Compares the products of the device with those of the CPU backend, bit by bit.
#include "backend/cuda/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_testing.h"

namespace kvcache::cuda::linear_test {
namespace {

using cpu::testing::RandomValues;
using cpu::testing::RandomWeights;
using linear_testing::Bench;
using linear_testing::FirstDifference;
using linear_testing::kUnwritten;
using linear_testing::Matrix;

struct Shape {
  std::int64_t inputs;
  std::int64_t outputs;
};

// Tails of inputs and of rows, and more chunks than sections and stages have.
std::vector<Shape> ShapesOf(DType dtype) {
  switch (InfoOf(dtype).block_size) {
    case 256: return {{256, 17}, {1024, 35}, {8704, 3}};
    case 64: return {{64, 1}, {320, 35}, {4672, 3}};
    case 32: return {{32, 17}, {96, 3}, {352, 35}, {4640, 3}};
    default: return {{1, 1}, {15, 5}, {40, 67}, {257, 3}, {300, 33}};
  }
}

class CudaLinear : public ::testing::TestWithParam<DType> {
 protected:
  // Multiplies with both backends and compares.
  void Compare(Bench& bench, const LinearWeight& on_cpu, const LinearWeight& on_device,
               const std::vector<float>& x) {
    const std::int64_t inputs = on_cpu.inputs();
    const std::int64_t outputs = on_cpu.outputs();
    const std::int64_t columns = static_cast<std::int64_t>(x.size()) / inputs;
    std::vector<float> expected(static_cast<std::size_t>(outputs * columns), kUnwritten);
    const LinearOutput cpu_output{&on_cpu, Matrix(expected.data(), outputs, columns)};
    ASSERT_TRUE(bench.cpu().Linear(Matrix(x.data(), inputs, columns), {&cpu_output, 1}).ok());
    const std::vector<float> unwritten(expected.size(), kUnwritten);
    float* const y = bench.Upload(unwritten);
    const LinearOutput output{&on_device, Matrix(y, outputs, columns)};
    const LinearGroup group{Matrix(bench.Upload(x), inputs, columns), {&output, 1}};
    bench.memory().BeginCall();
    const Status status = LinearGroups(bench.device(), bench.memory(), {&group, 1});
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(FirstDifference(bench.Download(y, expected.size()), expected), -1)
        << inputs << " x " << outputs << ", " << columns << " columns";
  }
};

TEST_P(CudaLinear, HasTheBitsOfTheCpu) {
  const DType dtype = GetParam();
  std::uint32_t seed = 1;
  for (const auto& [inputs, outputs] : ShapesOf(dtype)) {
    Bench bench(seed);
    const std::vector<std::byte> weights = RandomWeights(dtype, inputs * outputs, seed + 7);
    const TensorView w = TensorView::Dense(weights.data(), dtype, inputs, outputs);
    const auto on_cpu = bench.cpu().MakeLinear(w);
    const auto on_device = MakeLinear(bench.device(), w);
    ASSERT_TRUE(on_cpu.ok() && on_device.ok()) << on_device.status().message();
    EXPECT_EQ((*on_device)->outputs(), outputs);
    for (const std::int64_t columns : {1, 2, 3, 7, 8, 9, 33, 64, 130}) {
      const bool is_some = columns == 1 || columns == 3 || columns == 7 || columns == 33;
      if (inputs * outputs > 10'000 && !is_some) continue;
      Compare(bench, **on_cpu, **on_device, RandomValues(inputs * columns, seed + 8));
      if (HasFatalFailure()) return;
    }
    ++seed;
  }
}

// On four processors: too few columns for tiles of middle size; too few of the widest tiles; enough of them.
TEST_P(CudaLinear, MultipliesTilesOfAllSizes) {
  const DType dtype = GetParam();
  const std::int64_t inputs = dtype == DType::kNVFP4            ? 320
                              : InfoOf(dtype).block_size == 256 ? 512
                                                                : 352;
  constexpr std::int64_t kOutputs = 67;
  Bench bench(9);
  const std::vector<std::byte> weights = RandomWeights(dtype, inputs * kOutputs, 3);
  const TensorView w = TensorView::Dense(weights.data(), dtype, inputs, kOutputs);
  const auto on_cpu = bench.cpu().MakeLinear(w);
  const auto on_device = MakeLinear(bench.device(), w);
  ASSERT_TRUE(on_cpu.ok() && on_device.ok()) << on_device.status().message();
  const bool is_float = InfoOf(dtype).block_size == 1;
  const std::string type(InfoOf(linear::KernelTypeOf(dtype)).name);
  for (const auto& [columns, tiles] :
       {std::pair<std::int64_t, std::string>{20, "narrow"}, {100, "middle"}, {330, "wide"}}) {
    bench.device().names.clear();
    Compare(bench, **on_cpu, **on_device, RandomValues(inputs * columns, 4));
    if (HasFatalFailure()) return;
    const std::string name = "linear_" + (is_float ? "many" : tiles) + "_" + type;
    EXPECT_EQ(std::ranges::count(bench.device().names, name), 1) << name;
  }
}

// Groups of one call, each with matrices of its own from a stack.
TEST_P(CudaLinear, MultipliesGroupsOverAStack) {
  const DType dtype = GetParam();
  constexpr std::int64_t kMatrices = 3;
  const auto [inputs, outputs] = ShapesOf(dtype)[1];
  Bench bench(5);
  const auto stack = RandomWeights(dtype, inputs * outputs * kMatrices, 21);
  const TensorView w = TensorView::Dense(stack.data(), dtype, inputs, outputs, kMatrices);
  const auto on_cpu = bench.cpu().MakeLinear(w);
  const auto on_device = MakeLinear(bench.device(), w);
  ASSERT_TRUE(on_cpu.ok() && on_device.ok()) << on_device.status().message();
  EXPECT_EQ((*on_device)->matrices(), kMatrices);
  // More tasks than lie in the arguments.
  const int batches[] = {1, 0, 5, 11, 2, 1, 3, 1, 9, 1};
  struct Item {
    std::vector<float> x;
    std::array<std::vector<float>, 2> expected;
    std::array<float*, 2> y;
    std::array<LinearOutput, 2> cpu_outputs;
    std::array<LinearOutput, 2> outputs;
  };
  std::vector<Item> items(std::size(batches));
  std::vector<LinearGroup> cpu_groups;
  std::vector<LinearGroup> groups;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    const std::int64_t columns = batches[i];
    item.x = RandomValues(inputs * columns, static_cast<std::uint32_t>(22 + i));
    for (std::size_t k = 0; k < 2; ++k) {
      const auto first = static_cast<std::int64_t>(i) % kMatrices;
      const std::int64_t matrix = k == 0 ? first : kMatrices - 1 - first;
      item.expected[k].assign(static_cast<std::size_t>(outputs * columns), kUnwritten);
      item.cpu_outputs[k] = {on_cpu->get(), Matrix(item.expected[k].data(), outputs, columns),
                             matrix};
      item.y[k] = columns == 0 ? nullptr : bench.Upload(item.expected[k]);
      item.outputs[k] = {on_device->get(), Matrix(item.y[k], outputs, columns), matrix};
    }
    cpu_groups.push_back({Matrix(item.x.data(), inputs, columns), item.cpu_outputs});
    const float* const x = columns == 0 ? nullptr : bench.Upload(item.x);
    groups.push_back({Matrix(x, inputs, columns), item.outputs});
  }
  ASSERT_TRUE(bench.cpu().LinearGroups(cpu_groups).ok());
  const Status status = LinearGroups(bench.device(), bench.memory(), groups);
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::size_t k = 0; k < 2 && batches[i] > 0; ++k) {
      const auto& expected = items[i].expected[k];
      EXPECT_EQ(FirstDifference(bench.Download(items[i].y[k], expected.size()), expected), -1)
          << "group " << i << ", output " << k;
    }
  }
}

TEST_P(CudaLinear, EmbedsRows) {
  const DType dtype = GetParam();
  for (const std::int64_t width : {ShapesOf(dtype)[1].inputs, ShapesOf(dtype)[0].inputs}) {
    Bench bench(3);
    constexpr std::int64_t kRows = 9;
    const auto table = RandomWeights(dtype, width * kRows, 31);
    const std::vector<std::int32_t> tokens = {3, 0, 8, 3, 7};
    const auto count = static_cast<std::int64_t>(tokens.size());
    std::vector<float> expected(static_cast<std::size_t>(width * count));
    ASSERT_TRUE(bench.cpu()
                    .Embed(TensorView::Dense(table.data(), dtype, width, kRows), tokens,
                           Matrix(expected.data(), width, count))
                    .ok());
    float* const y = bench.Upload(std::vector<float>(expected.size(), kUnwritten));
    const Status status = Embed(bench.device(), bench.memory(),
                                TensorView::Dense(bench.Upload(table), dtype, width, kRows), tokens,
                                Matrix(y, width, count));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(FirstDifference(bench.Download(y, expected.size()), expected), -1) << width;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaLinear, ::testing::ValuesIn(cpu::testing::kWeightTypes),
                         [](const auto& instance) {
                           return std::string(InfoOf(instance.param).name);
                         });

}  // namespace
}  // namespace kvcache::cuda::linear_test
