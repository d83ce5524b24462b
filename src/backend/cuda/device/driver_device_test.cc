// Checks the device behind the driver without a GPU: errors of each step, copies that land late, and the backend's
// calls end to end on a driver whose kernels the shim runs.
#include "backend/cuda/device/driver_device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/fake_driver.h"
#include "gtest/gtest.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::cuda::driver_device_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += sizeof(unsigned)) {
    const auto value = static_cast<unsigned>(random());
    std::memcpy(bytes.data() + i, &value, std::min(sizeof(value), count - i));
  }
  return bytes;
}

void ExpectError(const Status& status, StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message(), message);
}

TEST(OpenDriver, NamesALibraryThatDoesNotExist) {
  const auto opened = OpenDriver("libno-such-driver.so.1");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(opened.status().message().rfind(
                "no driver of NVIDIA's on this machine: libno-such-driver.so.1: ", 0),
            0u)
      << opened.status().message();
}

TEST(OpenDriver, NamesAFunctionThatIsMissing) {
  const auto opened = OpenDriver("libm.so.6");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(opened.status().message().rfind("libm.so.6: no function cuInit (", 0), 0u)
      << opened.status().message();
}

// The toolkit has a library that exports the driver's functions and does nothing.
TEST(OpenDriver, FindsAllFunctionsOfTheToolkitsLibrary) {
  const char* const stub = std::getenv("KVCACHE_CUDA_STUB");
  const auto opened = OpenDriver(stub != nullptr ? stub : "/usr/local/cuda/lib64/stubs/libcuda.so");
  if (!opened.ok() && opened.status().message().rfind("no driver", 0) == 0) {
    GTEST_SKIP() << "no toolkit here";
  }
  EXPECT_TRUE(opened.ok()) << opened.status().message();
}

class DriverDevice : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Device>> Make(int index = 0) {
    return MakeDriverDevice(fake_.driver(), fake_.kernels(), index, kThreads);
  }
  static constexpr int kThreads = 3;
  FakeDriver fake_;
};

TEST_F(DriverDevice, DescribesTheDevice) {
  fake_.devices = 2;
  const auto device = Make(1);
  ASSERT_TRUE(device.ok()) << device.status().message();
  const DeviceInfo& info = (*device)->info();
  EXPECT_EQ(info.name, "Fake");
  EXPECT_EQ(info.capability, 90);
  EXPECT_EQ(info.processors, 4);
  EXPECT_EQ(info.memory_bytes, std::size_t{1} << 28);
  EXPECT_EQ(info.shared_bytes, std::size_t{99} << 10);
  EXPECT_EQ((*device)->FreeBytes(), info.memory_bytes);
}

TEST_F(DriverDevice, TellsItsFreeMemory) {
  const Driver driver = fake_.driver();
  const auto free = FreeBytesOf(driver, 0);
  ASSERT_TRUE(free.ok());
  EXPECT_EQ(*free, std::size_t{1} << 28);
  EXPECT_EQ(fake_.alive(), 0);
  fake_.Fail("cuMemGetInfo_v2", 999);
  ExpectError(FreeBytesOf(driver, 0).status(), StatusCode::kIo,
              "asking device 0 for its free memory: an error (999)");
  EXPECT_EQ(fake_.alive(), 0);
}

TEST_F(DriverDevice, NamesBothVersionsOfADriverThatIsTooOld) {
  fake_.version = 11080;
  ExpectError(Make().status(), StatusCode::kUnsupported,
              "the driver supports CUDA 11.8; the kernels need 12.0 or newer");
}

TEST_F(DriverDevice, SaysThatThereIsNoDevice) {
  fake_.devices = 0;
  ExpectError(Make().status(), StatusCode::kNotFound,
              "the driver sees no device (CUDA_VISIBLE_DEVICES may hide it)");
}

TEST_F(DriverDevice, RefusesAnIndexThatDoesNotExist) {
  for (const int index : {-1, 1}) {
    ExpectError(
        Make(index).status(), StatusCode::kInvalidArgument,
        "device is " + std::to_string(index) + "; the driver sees 1, the first of them is 0");
  }
}

TEST_F(DriverDevice, RefusesADeviceThatIsTooOld) {
  fake_.capability = 75;
  ExpectError(Make().status(), StatusCode::kUnsupported,
              "device 'Fake' has capability 7.5; the kernels need 8.0");
}

// A driver that is older than the kernels says it when the device is opened, so that the processor can take over.
TEST_F(DriverDevice, RefusesKernelsThatTheDriverCannotRun) {
  for (const int result : {kDriverInvalidImage, kDriverNoBinary, kDriverUnsupportedPtx}) {
    fake_.Fail("cuModuleLoadData", result);
    const Status status = Make().status();
    fake_.Repair();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_TRUE(status.message().ends_with("a newer driver may know the kernels"))
        << status.message();
    EXPECT_EQ(fake_.alive(), 0);
  }
}

// Whatever fails while the device is opened, nothing stays open.
TEST_F(DriverDevice, AFailedOpeningLeavesNothing) {
  const struct {
    const char* function;
    int n;
  } steps[] = {{"cuInit", 1},
               {"cuDeviceGetCount", 1},
               {"cuDeviceGetName", 1},
               {"cuDeviceGetAttribute", 3},
               {"cuDevicePrimaryCtxRetain", 1},
               {"cuCtxSetCurrent", 1},
               {"cuStreamCreate", 1},
               {"cuMemHostAlloc", 1},
               {"cuEventCreate", 2},
               {"cuModuleLoadData", 1}};
  for (const auto& step : steps) {
    fake_.Fail(step.function, 999, step.n);
    const auto device = Make();
    fake_.Repair();
    ASSERT_FALSE(device.ok()) << step.function;
    EXPECT_EQ(device.status().code(), StatusCode::kIo) << step.function;
    EXPECT_NE(device.status().message().find("an error (999)"), std::string::npos)
        << device.status().message();
    EXPECT_EQ(fake_.alive(), 0) << step.function;
  }
}

TEST_F(DriverDevice, MemoryIsZeroedAndFreed) {
  {
    const auto device = Make();
    ASSERT_TRUE(device.ok());
    const auto buffer = (*device)->Allocate(1000);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->size_bytes(), 1000u);
    Bytes bytes(1000, std::byte{1});
    ASSERT_TRUE((*device)->CopyOut((*buffer)->data(), bytes).ok());
    EXPECT_EQ(bytes, Bytes(1000));
    EXPECT_TRUE((*device)->Allocate(0).ok());
  }
  EXPECT_EQ(fake_.alive(), 0);
}

TEST_F(DriverDevice, NamesTheBytesThatDoNotFit) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const auto some = (*device)->Allocate(1 << 20);
  ExpectError((*device)->Allocate(std::size_t{1} << 28).status(), StatusCode::kOutOfMemory,
              "device 'Fake' has no memory for 268435456 bytes: 267386880 of 268435456 are free");
  // It is not lost by that.
  EXPECT_TRUE((*device)->Allocate(100).ok());
  EXPECT_TRUE((*device)->Synchronize().ok());
}

// The device is slow: copies happen when somebody waits.
TEST_F(DriverDevice, TheHostsMemoryIsFreeAgainAfterEachCopyIn) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  constexpr std::size_t kPiece = 70'000;
  constexpr std::size_t kPieces = 300;  // more than the page-locked memory holds
  const Bytes all = RandomBytes(kPiece * kPieces, 1);
  const auto buffer = (*device)->Allocate(all.size());
  Bytes piece(kPiece);
  for (std::size_t i = 0; i < kPieces; ++i) {
    std::memcpy(piece.data(), all.data() + i * kPiece, kPiece);
    ASSERT_TRUE((*device)->CopyIn(piece, (*buffer)->data() + i * kPiece).ok());
  }
  Bytes out(all.size());
  ASSERT_TRUE((*device)->CopyOut((*buffer)->data(), out).ok());
  EXPECT_TRUE(out == all);
}

TEST_F(DriverDevice, LargeAndSmallCopiesKeepTheirOrder) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const Bytes large = RandomBytes(11'000'001, 2);
  const Bytes small = RandomBytes(3, 3);
  const auto buffer = (*device)->Allocate(large.size());
  const auto other = (*device)->Allocate(large.size());
  for (int i = 0; i < 3; ++i) {
    Bytes expected = large;
    ASSERT_TRUE((*device)->CopyIn(large, (*buffer)->data()).ok());
    ASSERT_TRUE((*device)->CopyIn(small, (*buffer)->data() + 5'000'000).ok());
    ASSERT_TRUE((*device)->Copy((*buffer)->data(), (*other)->data(), large.size()).ok());
    ASSERT_TRUE((*device)->CopyIn(small, (*other)->data() + 7).ok());
    std::memcpy(expected.data() + 5'000'000, small.data(), small.size());
    std::memcpy(expected.data() + 7, small.data(), small.size());
    Bytes out(large.size());
    ASSERT_TRUE((*device)->CopyOut((*other)->data(), out).ok());
    EXPECT_TRUE(out == expected);
  }
  EXPECT_TRUE((*device)->CopyIn({}, (*buffer)->data()).ok());
  EXPECT_TRUE((*device)->CopyOut((*buffer)->data(), {}).ok());
  EXPECT_TRUE((*device)->Copy((*buffer)->data(), (*other)->data(), 0).ok());
}

// Units of any size, on several threads: more than the page-locked memory holds, and larger than a part of it.
TEST_F(DriverDevice, CopiesUnitsThatTheHostMakesOnTheWay) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const struct {
    std::size_t bytes, unit_bytes;
  } cases[] = {{1, 1},
               {100'000, 7},
               {9'000'000, 1'000'003},
               {17'000'000, 5'000'000},
               {40'000'000, kCopyUnitBytes},
               {10'000'000, 9'000'000}};
  for (const auto& [bytes, unit_bytes] : cases) {
    const Bytes all = RandomBytes(bytes, 5);
    const auto buffer = (*device)->Allocate(bytes + 3);
    ASSERT_TRUE(buffer.ok());
    const auto of_unit = [&](std::size_t unit, std::size_t size) {
      return std::span(all).subspan(unit * unit_bytes, size);
    };
    const LinkUnits units{bytes, unit_bytes};
    const Bytes before = RandomBytes(3, 6);
    ASSERT_TRUE((*device)->CopyIn(before, (*buffer)->data()).ok());
    ASSERT_TRUE((*device)
                    ->CopyInUnits(
                        units,
                        [&](std::size_t unit, std::span<std::byte> to) {
                          std::ranges::copy(of_unit(unit, to.size()), to.begin());
                        },
                        (*buffer)->data() + 3)
                    .ok());
    Bytes out(bytes + 3);
    ASSERT_TRUE((*device)->CopyOut((*buffer)->data(), out).ok());
    EXPECT_TRUE(std::ranges::equal(std::span(out).first(3), before)) << bytes;
    EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(3), all)) << bytes;
    std::vector<int> taken((bytes + unit_bytes - 1) / unit_bytes);  // a unit belongs to one thread
    std::atomic<int> wrong = 0;
    ASSERT_TRUE((*device)
                    ->CopyOutUnits((*buffer)->data() + 3, units,
                                   [&](std::size_t unit, std::span<const std::byte> from) {
                                     ++taken[unit];
                                     wrong += !std::ranges::equal(of_unit(unit, from.size()), from);
                                   })
                    .ok());
    EXPECT_EQ(wrong, 0) << bytes;
    EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << bytes;
  }
  const auto buffer = (*device)->Allocate(8);
  EXPECT_TRUE((*device)->CopyInUnits({}, {}, (*buffer)->data()).ok());
  EXPECT_TRUE((*device)->CopyOutUnits((*buffer)->data(), {}, {}).ok());
}

// A refused step is an error of its copy alone. Copies that are on the way keep their memory.
TEST_F(DriverDevice, ARefusedCopyLeavesTheOthersRight) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const Bytes all = RandomBytes(30'000'000, 8);
  const Bytes small = RandomBytes(1000, 9);
  const auto buffer = (*device)->Allocate(all.size());
  const auto other = (*device)->Allocate(small.size());
  const struct {
    const char* function;
    int n;
  } steps[] = {{"cuMemcpyHtoDAsync_v2", 3},
               {"cuMemcpyDtoHAsync_v2", 2},
               {"cuEventRecord", 2},
               {"cuEventSynchronize", 2}};
  for (const auto& step : steps) {
    Bytes out(all.size());
    ASSERT_TRUE((*device)->CopyIn(small, (*other)->data()).ok());
    fake_.Fail(step.function, kDriverInvalidValue, step.n);
    Status status = (*device)->CopyIn(all, (*buffer)->data());
    if (status.ok()) status = (*device)->CopyOut((*buffer)->data(), out);
    fake_.Repair();
    EXPECT_EQ(status.code(), StatusCode::kInternal) << step.function;
    Bytes small_out(small.size());
    ASSERT_TRUE((*device)->CopyOut((*other)->data(), small_out).ok());
    EXPECT_TRUE(small_out == small) << step.function;
    ASSERT_TRUE((*device)->CopyIn(all, (*buffer)->data()).ok());
    ASSERT_TRUE((*device)->CopyIn(small, (*buffer)->data()).ok());
    ASSERT_TRUE((*device)->CopyOut((*buffer)->data(), out).ok());
    EXPECT_TRUE(std::ranges::equal(std::span(out).first(small.size()), small)) << step.function;
    EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(small.size()),
                                   std::span(all).subspan(small.size())))
        << step.function;
  }
}

// A snapshot of a long text waits once for a layer, whatever its heads and pieces.
TEST_F(DriverDevice, CellsCrossInOneCopyForALayer) {
  const auto cpu = MakeCpuBackend({.threads = 1});
  auto device = Make();
  ASSERT_TRUE(device.ok());
  CudaBackend cuda(*std::move(device));
  LayerKv layer;
  layer.shape = {4, 64, 64};
  layer.k_type = layer.v_type = DType::kF16;
  layer.layout = KvLayout::kTiled;
  layer.cells = 2048;
  Bytes k = RandomBytes(static_cast<std::size_t>(layer.KBytes()), 10);
  Bytes v = RandomBytes(static_cast<std::size_t>(layer.VBytes()), 11);
  LayerKv host = layer;
  host.k = k.data();
  host.v = v.data();
  host.on_host = true;
  LayerKv there = layer;
  const auto there_k = cuda.Allocate(k.size());
  const auto there_v = cuda.Allocate(v.size());
  there.k = (*there_k)->data();
  there.v = (*there_v)->data();
  const CellMove moves[] = {{37, 1000, 900}, {1001, 51, 234}};
  ASSERT_TRUE(cuda.TransferCells(host, there, moves).ok());
  LayerKv back = layer;
  Bytes back_k(k.size());
  Bytes back_v(v.size());
  back.k = back_k.data();
  back.v = back_v.data();
  back.on_host = true;
  const CellMove returned[] = {{1000, 37, 900}, {51, 1001, 234}};
  const int before = fake_.waits();
  ASSERT_TRUE(cuda.TransferCells(there, back, returned).ok());
  EXPECT_LE(fake_.waits() - before, 3) << "one for each MiB, and one for arrays";
  LayerKv expected = layer;
  Bytes expected_k(k.size());
  Bytes expected_v(v.size());
  expected.k = expected_k.data();
  expected.v = expected_v.data();
  expected.on_host = true;
  const CellMove kept[] = {{37, 37, 900}, {1001, 1001, 234}};
  ASSERT_TRUE((*cpu)->TransferCells(host, expected, kept).ok());
  EXPECT_TRUE(back_k == expected_k);
  EXPECT_TRUE(back_v == expected_v);
}

constexpr Kernel kUnknown{"no_such_kernel", 32};

TEST_F(DriverDevice, NamesAKernelThatNoImageHas) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const int argument = 0;
  ExpectError(Launch(**device, kUnknown, {}, argument), StatusCode::kInternal,
              "no kernel 'no_such_kernel'");
  ExpectError(Launch(**device, kUnknown, {.x = 1, .y = 65536}, argument), StatusCode::kInternal,
              "kernel 'no_such_kernel': a grid of 1 x 65536 x 1 blocks is too large");
  EXPECT_TRUE(Launch(**device, kUnknown, {.x = 0}, argument).ok()) << "an empty grid is no work";
}

// After an error of the device itself, every call says so, and closing still works.
TEST_F(DriverDevice, ALostDeviceStaysLost) {
  for (const char* const function :
       {"cuStreamSynchronize", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async",
        "cuMemcpyDtoDAsync_v2", "cuEventRecord", "cuEventSynchronize"}) {
    auto device = Make();
    ASSERT_TRUE(device.ok());
    auto buffer = (*device)->Allocate(64);
    ASSERT_TRUE(buffer.ok());
    Bytes bytes(64);
    fake_.Fail(function, 719);
    Status first = (*device)->CopyIn(bytes, (*buffer)->data());
    if (first.ok()) first = (*device)->Copy((*buffer)->data(), (*buffer)->data() + 32, 16);
    if (first.ok()) first = (*device)->CopyOut((*buffer)->data(), bytes);
    if (first.ok()) first = (*device)->Allocate(8).status();
    if (first.ok()) first = (*device)->Synchronize();
    fake_.Repair();
    EXPECT_EQ(first.code(), StatusCode::kIo) << function;
    EXPECT_NE(first.message().find("unspecified launch failure (719); the device is lost"),
              std::string::npos)
        << first.message();
    for (const Status& later :
         {(*device)->CopyIn(bytes, (*buffer)->data()), (*device)->CopyOut((*buffer)->data(), bytes),
          (*device)->Synchronize(), (*device)->Allocate(8).status(),
          Launch(**device, kUnknown, {}, 0)}) {
      EXPECT_EQ(later.code(), StatusCode::kIo);
      EXPECT_EQ(later.message(), first.message());
    }
    EXPECT_EQ((*device)->FreeBytes(), 0u);
  }
}

// The backend on the slow device: the bytes of the CPU's.
TEST_F(DriverDevice, TheBackendRunsOnIt) {
  const auto cpu = MakeCpuBackend({.threads = 1});
  ASSERT_TRUE(cpu.ok());
  auto device = Make();
  ASSERT_TRUE(device.ok());
  {
    CudaBackend cuda(*std::move(device));
    LayerKv layer;
    layer.shape = {2, 64, 32};
    layer.k_type = DType::kQ8_0;
    layer.v_type = DType::kQ4_0;
    layer.layout = KvLayout::kTiled;
    layer.cells = 64;
    std::vector<float> rows(static_cast<std::size_t>(96 * 2 * 40));
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    for (float& value : rows) value = normal(random);
    const auto on_device = cuda.Allocate(rows.size() * 4);
    ASSERT_TRUE(on_device.ok());
    ASSERT_TRUE(cuda.device().CopyIn(std::as_bytes(std::span(rows)), (*on_device)->data()).ok());
    const CellRun runs[] = {{9, 40}};
    LayerKv here = layer;
    Bytes k(static_cast<std::size_t>(layer.KBytes()));
    Bytes v(static_cast<std::size_t>(layer.VBytes()));
    here.k = k.data();
    here.v = v.data();
    const auto view = [](const void* data, int dim) {
      return TensorView::Dense(data, DType::kF32, dim, 2, 40);
    };
    ASSERT_TRUE(
        (*cpu)->StoreKv(here, view(rows.data(), 64), view(rows.data() + 5120, 32), runs).ok());
    LayerKv there = layer;
    const auto there_k = cuda.Allocate(k.size());
    const auto there_v = cuda.Allocate(v.size());
    there.k = (*there_k)->data();
    there.v = (*there_v)->data();
    const std::byte* const data = (*on_device)->data();
    ASSERT_TRUE(cuda.StoreKv(there, view(data, 64), view(data + 5120 * 4, 32), runs).ok());
    LayerKv host = layer;
    Bytes host_k(k.size());
    Bytes host_v(v.size());
    host.k = host_k.data();
    host.v = host_v.data();
    host.on_host = true;
    const CellMove all[] = {{0, 0, 64}};
    ASSERT_TRUE(cuda.TransferCells(there, host, all).ok());
    EXPECT_TRUE(host_k == k);
    EXPECT_TRUE(host_v == v);
    EXPECT_GE(fake_.launches(), 2);
  }
  EXPECT_EQ(fake_.alive(), 0);
}

}  // namespace
}  // namespace kvcache::cuda::driver_device_test
