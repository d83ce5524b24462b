// Checks that joined launches leave the bytes of single ones, and which launches are joined.
#include "backend/cuda/joined/joined_device.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/kv/store.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/ops/elementwise.h"
#include "backend/cuda/ops/norms.h"
#include "backend/cuda/ops/rope.h"
#include "backend/cuda/shim/counting_device.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "tensor/quantize.h"

namespace kvcache::cuda::joined_device_test {
namespace {

using Bytes = std::vector<std::byte>;
using Names = std::vector<std::string>;

// The shim, with the names of what was launched.
class NamingDevice final : public Device {
 public:
  explicit NamingDevice(Names& names) : names_(names) {}

  const DeviceInfo& info() const override { return shim_->info(); }
  std::size_t FreeBytes() const override { return shim_->FreeBytes(); }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    return shim_->Allocate(size_bytes);
  }
  void Mark(std::byte* at, std::size_t bytes, MemoryUse use) override {
    shim_->Mark(at, bytes, use);
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    return shim_->CopyIn(from, to);
  }
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override {
    return shim_->CopyOut(from, to);
  }
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    return shim_->Copy(from, to, bytes);
  }
  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override {
    names_.emplace_back(kernel.name);
    return shim_->Launch(kernel, grid, shared_bytes, args);
  }
  Status Synchronize() override { return shim_->Synchronize(); }

 private:
  Names& names_;
  std::unique_ptr<Device> shim_ = MakeShimDevice();
};

// A device with some buffers of random floats.
class Scene {
 public:
  explicit Scene(bool joins) {
    device_ = std::make_unique<NamingDevice>(names);
    if (joins) device_ = std::make_unique<JoinedDevice>(std::move(device_));
    memory_ = std::make_unique<CallMemory>(*device_);
  }

  Device& device() { return *device_; }
  CallMemory& Begin() {
    memory_->BeginCall();
    return *memory_;
  }
  RopeTables& tables() { return tables_; }

  float* Floats(std::int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random_);
    buffers_.push_back(device_->Allocate(values.size() * sizeof(float)).value());
    Check(device_->CopyIn(std::as_bytes(std::span(values)), buffers_.back()->data()));
    return reinterpret_cast<float*>(buffers_.back()->data());
  }
  TensorView Tensor(std::int64_t d0, std::int64_t d1, std::int64_t d2 = 1) {
    return TensorView::Dense(Floats(d0 * d1 * d2), DType::kF32, d0, d1, d2);
  }
  const LinearWeight& Weight(DType type, std::int64_t inputs, std::int64_t outputs) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(inputs * outputs));
    for (float& value : values) value = normal(random_);
    Bytes rows(static_cast<std::size_t>(BytesOf(type, inputs) * outputs));
    if (CanQuantize(type)) {
      Check(Quantize(type, values, rows));
    } else {
      for (std::byte& byte : rows) byte = static_cast<std::byte>(random_() & 0x3f);
    }
    auto made = MakeLinear(*device_, TensorView::Dense(rows.data(), type, inputs, outputs));
    EXPECT_TRUE(made.ok());
    weights_.push_back(std::move(made).value());
    return *weights_.back();
  }
  void Product(const TensorView& x, const LinearWeight& weight, const TensorView& y) {
    const LinearOutput output{&weight, y};
    const LinearGroup group{x, {&output, 1}};
    Check(LinearGroups(*device_, Begin(), {&group, 1}));
  }
  // All buffers.
  std::vector<Bytes> Everything() {
    std::vector<Bytes> all;
    for (const auto& buffer : buffers_) {
      all.emplace_back(buffer->size_bytes());
      Check(device_->CopyOut(buffer->data(), all.back()));
    }
    return all;
  }
  static void Check(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

  Names names;

 private:
  std::mt19937 random_{5};
  std::unique_ptr<Device> device_;
  std::unique_ptr<CallMemory> memory_;
  RopeTables tables_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<LinearWeight>> weights_;
};

// Runs the calls on the shim alone and behind a JoinedDevice, compares all bytes, and returns the names of the latter.
Names Joined(const std::function<void(Scene&)>& calls) {
  Scene single(false);
  Scene joined(true);
  calls(single);
  calls(joined);
  EXPECT_TRUE(single.Everything() == joined.Everything());
  return joined.names;
}

// x += h; h = the norm of x; y = the product of h.
Names AddNormProduct(DType type, std::int64_t width, std::int64_t rows, bool adds = true) {
  return Joined([=](Scene& scene) {
    const TensorView x = scene.Tensor(width, rows);
    const TensorView h = scene.Tensor(width, rows);
    const TensorView weight = scene.Tensor(width, 1);
    const TensorView y = scene.Tensor(48, rows);
    const LinearWeight& matrix = scene.Weight(type, width, 48);
    if (adds) scene.Check(Add(scene.device(), x, h));
    scene.Check(RmsNorm(scene.device(), x, weight, 1e-5f, h));
    scene.Product(h, matrix, y);
  });
}

Names WithoutProducts(Names names) {
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with("linear_") && !name.starts_with("linear_quantize");
  });
  return names;
}

TEST(JoinedDevice, AddsNormalizesAndQuantizesAtOnce) {
  for (const std::int64_t width : {544, 1024, 4096, 8192}) {
    for (const std::int64_t rows : {1, 3, 8, 21}) {
      SCOPED_TRACE(std::to_string(width) + " x " + std::to_string(rows));
      EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kQ8_0, width, rows)),
                Names{"joined_norm_32"});
      EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kQ8_0, width, rows, false)),
                Names{"joined_norm_32"});
    }
  }
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kQ4_K, 1024, 5)), Names{"joined_norm_256"});
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kNVFP4, 1024, 5)), Names{"joined_norm_16"});
}

TEST(JoinedDevice, AddsAndNormalizesForFloatWeights) {
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kF16, 1024, 3)), Names{"joined_norm"});
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kF16, 1024, 3, false)), Names{"norm_wide"});
}

TEST(JoinedDevice, LeavesNormsAloneThatItDoesNotKnow) {
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kQ8_0, 512, 2)),
            (Names{"add_values", "norm_narrow", "linear_quantize_32"}));
  EXPECT_EQ(WithoutProducts(AddNormProduct(DType::kQ8_0, 8224, 2)),
            (Names{"add_values", "norm_wide", "linear_quantize_32"}));
}

// Two types of weights that quantise differently: the second quantisation reads what the first launch has written.
TEST(JoinedDevice, JoinsTheFirstOfTwoQuantizations) {
  const Names names = Joined([](Scene& scene) {
    const TensorView x = scene.Tensor(1024, 4);
    const TensorView h = scene.Tensor(1024, 4);
    const TensorView weight = scene.Tensor(1024, 1);
    const LinearWeight& a = scene.Weight(DType::kQ8_0, 1024, 32);
    const LinearWeight& b = scene.Weight(DType::kQ6_K, 1024, 32);
    const LinearOutput outputs[] = {{&a, scene.Tensor(32, 4)}, {&b, scene.Tensor(32, 4)}};
    scene.Check(RmsNorm(scene.device(), x, weight, 1e-5f, h));
    const LinearGroup group{h, outputs};
    scene.Check(LinearGroups(scene.device(), scene.Begin(), {&group, 1}));
  });
  EXPECT_EQ(WithoutProducts(names), (Names{"joined_norm_32", "linear_quantize_256"}));
}

TEST(JoinedDevice, KeepsOperationsApartThatDoNotFollowEachOther) {
  // The norm is of another tensor; the product is of another one.
  const Names names = Joined([](Scene& scene) {
    const TensorView x = scene.Tensor(1024, 2);
    const TensorView other = scene.Tensor(1024, 2);
    const TensorView h = scene.Tensor(1024, 2);
    const TensorView weight = scene.Tensor(1024, 1);
    const LinearWeight& matrix = scene.Weight(DType::kQ8_0, 1024, 32);
    const TensorView y = scene.Tensor(32, 2);
    const TensorView tall = scene.Tensor(1024, 4);
    const TensorView z = scene.Tensor(1024, 3);
    const TensorView one = scene.Tensor(32, 1);
    scene.Check(Add(scene.device(), x, h));
    scene.Check(RmsNorm(scene.device(), other, weight, 1e-5f, h));
    scene.Product(x, matrix, y);
    // The norm's rows begin within those that are added: a block would write what another one reads.
    TensorView below = tall;
    below.dims[1] = 3;
    TensorView above = below;
    above.data += 4096;
    scene.Check(Add(scene.device(), z, below));
    scene.Check(RmsNorm(scene.device(), z, weight, 1e-5f, above));
    // Only a part of what the norm gives.
    TensorView part = h;
    part.dims[1] = 1;
    scene.Check(RmsNorm(scene.device(), other, weight, 1e-5f, h));
    scene.Product(part, matrix, one);
  });
  EXPECT_EQ(WithoutProducts(names),
            (Names{"add_values", "norm_wide", "linear_quantize_32", "add_values", "norm_wide",
                   "norm_wide", "linear_quantize_32"}));
}

TEST(JoinedDevice, NormalizesInPlaceAndRowsAtAStride) {
  const Names names = Joined([](Scene& scene) {
    const TensorView weight = scene.Tensor(1024, 1);
    const LinearWeight& matrix = scene.Weight(DType::kQ8_0, 1024, 32);
    const TensorView x = scene.Tensor(1024, 3);
    const TensorView y = scene.Tensor(32, 3);
    TensorView wide = scene.Tensor(2048, 3);
    wide.dims[0] = 1024;
    scene.Check(RmsNorm(scene.device(), x, weight, 1e-5f, x));
    scene.Product(x, matrix, y);
    scene.Check(RmsNorm(scene.device(), wide, weight, 1e-5f, x));
    scene.Product(x, matrix, y);
  });
  EXPECT_EQ(WithoutProducts(names), (Names{"joined_norm_32", "joined_norm_32"}));
}

TEST(JoinedDevice, GatesAndQuantizesAtOnce) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_K, DType::kNVFP4}) {
    for (const std::int64_t columns : {1, 5, 9}) {
      for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
        const Names names = Joined([=](Scene& scene) {
          const TensorView gate = scene.Tensor(768, columns);
          const TensorView up = scene.Tensor(768, columns);
          const LinearWeight& matrix = scene.Weight(type, 768, 32);
          const TensorView y = scene.Tensor(32, columns);
          scene.Check(Gate(scene.device(), gate, up, activation));
          scene.Product(gate, matrix, y);
        });
        ASSERT_EQ(WithoutProducts(names).size(), 1u);
        EXPECT_TRUE(WithoutProducts(names)[0].starts_with("joined_gate_"));
      }
    }
  }
}

struct StoreCase {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int q_heads = 8;
  int rotated = 64;  // values of a head
  int first = 0;
  RopeParams::Pairing pairing = RopeParams::Pairing::kHalves;
  std::vector<CellRun> cells = {{5, 30}, {40, 1}};
  bool keys_first = false;
  bool v_is_k = false;  // the values are the rotated keys
  bool v_in_k = false;
};

Names RopeAndStore(const StoreCase& of) {
  return Joined([&](Scene& scene) {
    std::int64_t tokens = 0;
    for (const CellRun& run : of.cells) tokens += run.length;
    LayerKv layer;
    layer.shape = {2, 64, of.v_in_k ? 32 : 64, of.v_in_k};
    layer.k_type = of.k_type;
    layer.v_type = of.v_type;
    layer.layout = KvLayout::kTiled;
    layer.cells = 2048;
    layer.k = reinterpret_cast<std::byte*>(scene.Floats(layer.KBytes() / 4));
    layer.v = of.v_in_k ? nullptr : reinterpret_cast<std::byte*>(scene.Floats(layer.VBytes() / 4));
    const TensorView q = scene.Tensor(64, of.q_heads, tokens);
    const TensorView k = scene.Tensor(64, 2, tokens);
    const TensorView v = of.v_in_k   ? ValuesInKeys(k, 32)
                         : of.v_is_k ? k
                                     : scene.Tensor(64, 2, tokens);
    std::vector<Position> positions;
    for (std::int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<Position>(3 * i + 1));
    std::vector<float> frequencies;
    for (int i = 0; i < of.rotated / 2; ++i)
      frequencies.push_back(1.0f / static_cast<float>(i + 1));
    const RopeParams rope{
        .pairing = of.pairing, .dims = of.rotated, .inv_freq = frequencies, .first = of.first};
    // The table of angles is made before.
    const TensorView before = scene.Tensor(64, 1, tokens);
    scene.Check(Rope(scene.device(), scene.Begin(), scene.tables(), before, positions, rope));
    scene.Check(scene.device().Synchronize());
    scene.names.clear();
    for (const TensorView& x : of.keys_first ? std::vector{k, q} : std::vector{q, k}) {
      scene.Check(Rope(scene.device(), scene.Begin(), scene.tables(), x, positions, rope));
    }
    scene.Check(StoreKv(scene.device(), scene.Begin(), layer, k, v, of.cells));
  });
}

TEST(JoinedDevice, RotatesAndStoresAtOnce) {
  std::vector<StoreCase> cases(7);
  cases[1] = {.k_type = DType::kQ8_0, .v_type = DType::kQ4_0};
  cases[2] = {.k_type = DType::kF32, .v_type = DType::kBF16, .q_heads = 2, .keys_first = true};
  cases[3] = {.rotated = 32, .first = 32};
  cases[4] = {.rotated = 16, .first = 8, .pairing = RopeParams::Pairing::kInterleaved};
  cases[5] = {.cells = {{17, 1}}};
  cases[6] = {.k_type = DType::kQ4_0, .v_type = DType::kQ8_0, .q_heads = 4, .cells = {{17, 1}}};
  for (const StoreCase& of : cases) EXPECT_EQ(RopeAndStore(of), Names{"joined_store"});
}

TEST(JoinedDevice, StoresAloneWhatItDoesNotKnow) {
  const Names apart = {"rotate_heads", "rotate_heads", "kv_store"};
  EXPECT_EQ(RopeAndStore({.v_is_k = true}), apart);
  EXPECT_EQ(RopeAndStore({.v_in_k = true}), apart);
  std::vector<CellRun> many;  // more pieces than the arguments hold
  for (std::int32_t i = 0; i < 100; ++i) many.push_back({2 * i, 1});
  EXPECT_EQ(RopeAndStore({.cells = many}), apart);
}

TEST(JoinedDevice, HasTheThreadsOfTheDevice) {
  auto shim = MakeShimDevice();
  ThreadPool& pool = shim->pool();
  JoinedDevice device(std::move(shim));
  EXPECT_EQ(&device.pool(), &pool);
}

// What is held back has started before any other call sees the memory.
TEST(JoinedDevice, NobodySeesThatALaunchIsHeldBack) {
  Names names;
  JoinedDevice device(std::make_unique<NamingDevice>(names));
  const std::vector<float> ones(1024, 1.0f);
  const auto make = [&] {
    auto buffer = device.Allocate(4096).value();
    EXPECT_TRUE(device.CopyIn(std::as_bytes(std::span(ones)), buffer->data()).ok());
    return buffer;
  };
  const auto x = make();
  auto y = make();
  const auto view = [](const std::unique_ptr<Buffer>& of) {
    return TensorView::Dense(of->data(), DType::kF32, 1024);
  };
  const auto value = [&] {
    std::vector<float> out(1024);
    EXPECT_TRUE(device.CopyOut(x->data(), std::as_writable_bytes(std::span(out))).ok());
    return out[1023];
  };
  ASSERT_TRUE(Add(device, view(x), view(y)).ok());
  EXPECT_TRUE(names.empty());
  EXPECT_EQ(value(), 2.0f);
  ASSERT_TRUE(Add(device, view(x), view(y)).ok());
  const std::vector<float> fives(1024, 5.0f);
  ASSERT_TRUE(device.CopyIn(std::as_bytes(std::span(fives)), y->data()).ok());
  EXPECT_EQ(value(), 3.0f);
  ASSERT_TRUE(Add(device, view(x), view(y)).ok());
  ASSERT_TRUE(device.Copy(y->data(), x->data(), 2048).ok());
  EXPECT_EQ(value(), 8.0f);
  ASSERT_TRUE(Add(device, view(x), view(y)).ok());
  y.reset();
  EXPECT_EQ(value(), 13.0f);
  y = make();
  ASSERT_TRUE(Add(device, view(x), view(y)).ok());
  ASSERT_TRUE(device.Synchronize().ok());
  EXPECT_EQ(names, Names(5, "add_values"));
  EXPECT_EQ(value(), 14.0f);
}

TEST(JoinedDevice, ReportsAnErrorOfWhatWasHeldBack) {
  if (MakeShimDevice()->info().name != "shim")
    GTEST_SKIP() << "a wrong address loses a real device";
  Names names;
  JoinedDevice device(std::make_unique<NamingDevice>(names));
  auto x = device.Allocate(4096).value();
  std::vector<float> host(1024);
  const TensorView here = TensorView::Dense(x->data(), DType::kF32, 1024);
  const TensorView wrong = TensorView::Dense(host.data(), DType::kF32, 1024);
  ASSERT_TRUE(Add(device, here, wrong).ok());
  EXPECT_EQ(device.Synchronize().code(), StatusCode::kInternal);
  EXPECT_TRUE(device.Synchronize().ok()) << "an error is told once";
  ASSERT_TRUE(Add(device, here, wrong).ok());
  x.reset();
  EXPECT_EQ(device.Synchronize().code(), StatusCode::kInternal);
  EXPECT_TRUE(device.Synchronize().ok());
}

// Each call may be the next one.
TEST(JoinedDevice, TheCallAfterAFreeReportsItsError) {
  if (MakeShimDevice()->info().name != "shim")
    GTEST_SKIP() << "a wrong address loses a real device";
  Names names;
  JoinedDevice device(std::make_unique<NamingDevice>(names));
  const auto y = device.Allocate(4096).value();
  const TensorView here = TensorView::Dense(y->data(), DType::kF32, 1024);
  std::vector<float> host(1024);
  const TensorView wrong = TensorView::Dense(host.data(), DType::kF32, 1024);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(host));
  const std::function<Status()> calls[] = {
      [&] { return Add(device, here, here); },  // would be held back
      [&] {
        return device.Launch(Kernel{"none", 32}, {.x = 0}, 0, {});
      },
      [&] { return device.Allocate(16).status(); },
      [&] { return device.CopyIn(bytes, y->data()); },
      [&] { return device.CopyOut(y->data(), bytes); },
      [&] { return device.Copy(y->data(), y->data() + 2048, 1024); },
      [&] { return device.Synchronize(); },
  };
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    auto freed = device.Allocate(4096).value();
    ASSERT_TRUE(Add(device, TensorView::Dense(freed->data(), DType::kF32, 1024), wrong).ok());
    freed.reset();
    names.clear();
    EXPECT_EQ(calls[i]().code(), StatusCode::kInternal) << "call " << i;
    EXPECT_TRUE(device.Synchronize().ok());
    EXPECT_TRUE(names.empty()) << "call " << i << " was started all the same";
  }
}

// A call's memory waits for the device when it frees chunks, and so starts what is held back.
TEST(JoinedDevice, CallMemoryReportsAnErrorOfWhatWasHeldBack) {
  if (MakeShimDevice()->info().name != "shim")
    GTEST_SKIP() << "a wrong address loses a real device";
  Names names;
  JoinedDevice device(std::make_unique<NamingDevice>(names));
  const auto x = device.Allocate(4096).value();
  CallMemory memory(device);
  memory.BeginCall();
  ASSERT_TRUE(memory.Take(16).ok());
  ASSERT_TRUE(memory.Take(std::size_t{2} << 20).ok());
  std::vector<float> host(1024);
  ASSERT_TRUE(Add(device, TensorView::Dense(x->data(), DType::kF32, 1024),
                  TensorView::Dense(host.data(), DType::kF32, 1024))
                  .ok());
  memory.BeginCall();
  EXPECT_EQ(memory.Take(16).status().code(), StatusCode::kInternal);
  EXPECT_TRUE(memory.Take(16).ok());
}

TEST(JoinedDevice, DoesNotHoldLaunchesWithManyArguments) {
  auto owned = std::make_unique<CountingDevice>();
  const CountingDevice& counting = *owned;
  JoinedDevice device(std::move(owned));
  const Bytes many(JoinedDevice::Held::kMaxArgs + 1);
  constexpr Kernel kLarge{"large_add", 32, KernelPart::kAdd};
  ASSERT_TRUE(device.Launch(kLarge, {}, 0, many).ok());
  EXPECT_EQ(counting.counts.launches, 1);
  const auto buffer = device.Allocate(4096).value();
  const TensorView x = TensorView::Dense(buffer->data(), DType::kF32, 512);
  ASSERT_TRUE(Add(device, x, x).ok());
  EXPECT_EQ(counting.counts.launches, 1);
  ASSERT_TRUE(device.Launch(kLarge, {}, 0, many).ok());
  EXPECT_EQ(counting.counts.launches, 3);
}

}  // namespace
}  // namespace kvcache::cuda::joined_device_test
