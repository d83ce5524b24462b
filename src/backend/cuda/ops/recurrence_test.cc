// Compares convolutions, decay rates and scans with the CPU backend's, bit by bit.
#include "backend/cuda/ops/recurrence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::recurrence_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

// Strands of segments, with states in both memories.
struct MirroredSegments {
  std::vector<StateSegment> host, device;
  std::vector<std::int32_t> strands{0};
  std::int64_t values = 0;

  StateSegments Host() const { return {.segments = host, .strands = strands, .values = values}; }
  StateSegments Device() const {
    return {.segments = device, .strands = strands, .values = values};
  }
};

class CudaRecurrence : public ::testing::TestWithParam<int> {
 protected:
  static const std::byte* StateAt(const TensorView& states, std::int64_t state,
                                  std::int64_t values) {
    return states.data + state * values * 4;
  }

  // Divides `batch` columns into strands of up to three segments. A strand begins with a state of its
  // own; the next segments read what an earlier one wrote, and write in place or elsewhere.
  MirroredSegments Divide(std::int64_t batch, std::int64_t values, int longest) {
    MirroredSegments all;
    all.values = values;
    const std::int64_t most = 2 * batch + 1;
    const Mirror states = both_.Tensor({values, most, 1});
    std::int64_t next_state = 0;
    std::int32_t first = 0;
    while (first < batch) {
      std::int64_t state = next_state++;
      for (int i = both_.Draw(1, 3); i > 0 && first < batch; --i) {
        const int left = static_cast<int>(batch) - first;
        const int tokens = both_.Draw(1, std::min(left, longest));
        const std::int64_t after = both_.Draw(0, 1) == 0 ? state : next_state++;
        Add(all, states, {state, after}, first, tokens);
        first += tokens;
        if (both_.Draw(0, 1) == 0) state = after;
      }
      all.strands.push_back(static_cast<std::int32_t>(all.host.size()));
    }
    return all;
  }

  struct Transition {
    std::int64_t before, after;
  };
  static void Add(MirroredSegments& all, const Mirror& states, const Transition& transition,
                  std::int32_t first, std::int32_t tokens) {
    const auto segment = [&](const TensorView& view) {
      return StateSegment{
          .first = first,
          .tokens = tokens,
          .before = StateAt(view, transition.before, all.values),
          .after = const_cast<std::byte*>(StateAt(view, transition.after, all.values))};
    };
    all.host.push_back(segment(states.host));
    all.device.push_back(segment(states.device));
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  Device& device_ = both_.device();
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRecurrence, ::testing::Range(1, 4));

// ---- Convolution

TEST_P(CudaRecurrence, ShortConv) {
  for (const std::int64_t steps : {2, 3, 4, 5, 32}) {
    for (const std::int64_t channels : {1, 70, 128, 130}) {
      const bool long_segments = both_.Draw(0, 2) == 0;
      const std::int64_t batch = long_segments ? 150 : both_.Draw(1, 30);
      const std::int64_t gap = both_.Draw(0, 2);
      const bool states_only = both_.Draw(0, 4) == 0;
      const Mirror x = both_.Tensor({channels, batch, 1}, Content::kNumbers, gap);
      const Mirror y = both_.Tensor({channels, batch, 1}, Content::kNumbers, 2 * gap);
      const Mirror taps = both_.Tensor({steps, channels, 1});
      const Mirror bias = both_.Tensor({channels, 1, 1});
      ConvTaps on_host{taps.host}, on_device{taps.device};
      if (both_.Draw(0, 1) == 0) {
        on_host.bias = bias.host;
        on_device.bias = bias.device;
      }
      const MirroredSegments segments =
          Divide(batch, (steps - 1) * channels, long_segments ? 150 : 9);
      const std::string what =
          "steps " + std::to_string(steps) + ", channels " + std::to_string(channels);
      ExpectSameStatus(
          cpu_.ShortConv(x.host, on_host, segments.Host(), states_only ? TensorView() : y.host),
          ShortConv(device_, both_.memory(), x.device, on_device, segments.Device(),
                    states_only ? TensorView() : y.device),
          what);
      both_.ExpectSame(what);
      both_.Forget();
    }
  }
}

TEST_P(CudaRecurrence, ShortConvOfManyStrands) {
  const Mirror x = both_.Tensor({5, 40, 1});
  const Mirror y = both_.Tensor({5, 40, 1});
  const Mirror taps = both_.Tensor({4, 5, 1});
  const MirroredSegments segments = Divide(40, 15, 1);
  EXPECT_GT(segments.host.size(), 16u);
  ExpectSameStatus(
      cpu_.ShortConv(x.host, {taps.host}, segments.Host(), y.host),
      ShortConv(device_, both_.memory(), x.device, {taps.device}, segments.Device(), y.device),
      "many");
  both_.ExpectSame("many strands");
}

// ---- Decay rates

TEST_P(CudaRecurrence, DecayRates) {
  for (const std::int64_t heads : {1, 7, 32, 48}) {
    for (const bool in_place : {false, true}) {
      const std::int64_t batch = both_.Draw(1, 20);
      const Mirror raw = both_.Tensor({heads, batch, 1}, Content::kSpecial, both_.Draw(0, 2));
      const Mirror bias = both_.Tensor({heads, 1, 1});
      const Mirror rates = both_.Tensor({heads, 1, 1}, Content::kSpecial);
      const Mirror steps = in_place ? raw : both_.Tensor({heads, batch, 1});
      const Mirror decays = both_.Tensor({heads, batch, 1}, Content::kNumbers, 3);
      const std::string what = "heads " + std::to_string(heads);
      ExpectSameStatus(
          cpu_.DecayRates(raw.host, bias.host, rates.host, steps.host, decays.host),
          DecayRates(device_, raw.device, bias.device, rates.device, steps.device, decays.device),
          what);
      both_.ExpectSame(what);
      both_.Forget();
    }
  }
}

// ---- Scan

class CudaScan : public CudaRecurrence {
 protected:
  struct Shape {
    std::int64_t k_dim, v_dim, groups, heads, batch;
  };

  // Scans with random options, and compares.
  void Scan(const Shape& shape, int longest) {
    const std::int64_t gap = both_.Draw(0, 2) == 0 ? both_.Draw(1, 4) : 0;
    const Mirror keys =
        both_.Tensor({shape.k_dim, shape.groups, shape.batch}, Content::kNumbers, gap);
    const Mirror queries = both_.Tensor({shape.k_dim, shape.groups, shape.batch});
    const Mirror values =
        both_.Tensor({shape.v_dim, shape.heads, shape.batch}, Content::kNumbers, gap);
    const Mirror decays = both_.Tensor({shape.heads, shape.batch, 1}, Content::kNumbers, gap);
    const Mirror steps = both_.Tensor({shape.heads, shape.batch, 1});
    const Mirror out =
        both_.Tensor({shape.v_dim, shape.heads, shape.batch}, Content::kNumbers, gap);
    const std::vector<float> skip = both_.Values(shape.heads);
    ScanOptions options{
        .rule = both_.Draw(0, 2) == 0 ? ScanRule::kAdd : ScanRule::kDelta,
        .groups = both_.Draw(0, 1) == 0 ? ScanGroups::kNeighbors : ScanGroups::kRotating,
        .norm_epsilon = both_.Draw(0, 1) == 0 ? 0.0f : 1e-6f,
        .query_scale = both_.Draw(0, 1) == 0 ? 1.0f : 0.3f};
    if (both_.Draw(0, 1) == 0) options.skip = skip;
    const bool states_only = both_.Draw(0, 3) == 0;
    const MirroredSegments segments =
        Divide(shape.batch, shape.k_dim * shape.v_dim * shape.heads, longest);
    const auto inputs = [&](TensorView Mirror::*side) {
      return ScanInputs{.keys = keys.*side,
                        .queries = states_only ? TensorView() : queries.*side,
                        .values = values.*side,
                        .decays = decays.*side,
                        .steps = steps.*side};
    };
    const std::string what = "k_dim " + std::to_string(shape.k_dim) + ", v_dim " +
                             std::to_string(shape.v_dim) + ", heads " +
                             std::to_string(shape.heads) + ", batch " + std::to_string(shape.batch);
    ExpectSameStatus(cpu_.StateScan(inputs(&Mirror::host), options, segments.Host(),
                                    states_only ? TensorView() : out.host),
                     StateScan(device_, both_.memory(), inputs(&Mirror::device), options,
                               segments.Device(), states_only ? TensorView() : out.device),
                     what);
    both_.ExpectSame(what);
    both_.Forget();
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaScan, ::testing::Range(1, 4));

TEST_P(CudaScan, AllShapes) {
  for (const std::int64_t k_dim : {1, 5, 8, 17, 33, 64, 100, 128, 256}) {
    for (int i = 0; i < 3; ++i) {
      const std::int64_t groups = both_.Draw(1, 2);
      const std::int64_t v_dim = both_.Draw(1, 2) == 1 ? 32 : both_.Draw(1, 40);
      Scan({k_dim, v_dim, groups, groups * both_.Draw(1, 2), both_.Draw(1, 11)}, 9);
    }
  }
}

// The state of long keys lies in the memory of the result.
TEST_P(CudaScan, LongKeys) {
  Scan({300, 3, 1, 1, 4}, 3);
  Scan({301, 2, 1, 1, 3}, 3);
}

TEST_P(CudaScan, ManyHeadsAndStrands) {
  Scan({4, 3, 1, 130, 2}, 2);
  Scan({8, 4, 2, 2, 40}, 1);
}

TEST_P(CudaScan, ErrorsAreThoseOfTheCpu) {
  const Mirror keys = both_.Tensor({8, 1, 2});
  const Mirror values = both_.Tensor({8, 2, 2});
  const Mirror rates = both_.Tensor({2, 2, 1});
  const std::vector<float> skip(3);
  const MirroredSegments segments = Divide(2, 128, 2);
  const auto both = [&](const ScanOptions& options, const StateSegments& host,
                        const StateSegments& device) {
    const auto run = [&](TensorView Mirror::*side) {
      return ScanInputs{keys.*side, keys.*side, values.*side, rates.*side, rates.*side};
    };
    ExpectSameStatus(
        cpu_.StateScan(run(&Mirror::host), options, host, values.host),
        StateScan(device_, both_.memory(), run(&Mirror::device), options, device, values.device),
        "scan");
  };
  both({.skip = skip}, segments.Host(), segments.Device());
  StateSegments host = segments.Host(), device = segments.Device();
  host.values = device.values = 64;
  both({}, host, device);
  host = segments.Host(), device = segments.Device();
  host.strands = device.strands = {};
  both({}, host, device);
}

// Keys that need more shared memory than a block has are refused with their length.
TEST_P(CudaScan, KeysBeyondSharedMemoryAreRefused) {
  const auto size = static_cast<std::int64_t>(device_.info().shared_bytes);  // of each device
  const Mirror keys = both_.Tensor({size, 1, 1});
  const Mirror values = both_.Tensor({1, 1, 1});
  const MirroredSegments segments = Divide(1, size, 1);
  const Status status =
      StateScan(device_, both_.memory(),
                {keys.device, keys.device, values.device, values.device, values.device}, {},
                segments.Device(), values.device);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find(std::to_string(size)), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvcache::cuda::recurrence_test
