// Checks what each function of the language of kernels does on the shim, for several orders of threads.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/shim/language_kernels.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "tensor/float_conversion.h"

namespace kvcache::cuda::language_test {
namespace {

class Language : public ::testing::TestWithParam<int> {
 protected:
  // Returns a copy of `values` on the device.
  template <class T>
  T* Upload(const std::vector<T>& values) {
    buffers_.push_back(device_->Allocate(values.size() * sizeof(T)).value());
    EXPECT_TRUE(device_->CopyIn(std::as_bytes(std::span(values)), buffers_.back()->data()).ok());
    return reinterpret_cast<T*>(buffers_.back()->data());
  }
  template <class T>
  std::vector<T> Download(const T* from, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(device_
                    ->CopyOut(reinterpret_cast<const std::byte*>(from),
                              std::as_writable_bytes(std::span(values)))
                    .ok());
    return values;
  }
  std::vector<float> Floats(std::size_t count) {
    std::uniform_real_distribution<float> draw(-2.0f, 2.0f);
    std::vector<float> values(count);
    for (float& value : values) value = draw(random_);
    return values;
  }
  template <class Args>
  void Run(const Kernel& kernel, std::int64_t blocks, const Args& args, std::size_t shared = 0) {
    const Status status = Launch(*device_, kernel, {.x = blocks}, args, shared);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<Device> device_ =
      MakeShimDevice({.seed = static_cast<std::uint64_t>(GetParam())});
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

constexpr Kernel kAdd{"language_add", 256};
constexpr Kernel kSum{"language_sum", 256};
constexpr Kernel kMma{"language_mma", 32};
constexpr Kernel kWords{"language_words", 64};
constexpr Kernel kCopy{"language_copy", 64};
constexpr Kernel kLanes{"language_lanes", 64};

TEST_P(Language, ThreadsAndBlocks) {
  const std::vector<float> x = Floats(1000);
  const std::vector<float> y = Floats(1000);
  float* const out = Upload(y);
  Run(kAdd, 4, LanguageAddArgs{Upload(x), out, 1000});
  const std::vector<float> sums = Download(out, 1000);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(sums[i], y[i] + x[i]);
}

TEST_P(Language, SharedMemoryAndShuffles) {
  const std::vector<float> x = Floats(7 * 256);
  float* const out = Upload(std::vector<float>(7));
  Run(kSum, 7, LanguageSumArgs{Upload(x), out}, 32);
  const std::vector<float> sums = Download(out, 7);
  for (int block = 0; block < 7; ++block) {
    float total = 0.0f;
    for (int warp = 0; warp < 8; ++warp) {
      std::vector<float> lanes(x.begin() + (block * 8 + warp) * 32,
                               x.begin() + (block * 8 + warp + 1) * 32);
      for (int width = 16; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
      }
      total += lanes[0];
    }
    EXPECT_EQ(sums[block], total);
  }
}

TEST_P(Language, MatrixInstructions) {
  std::vector<std::uint8_t> a(16 * 32);
  std::vector<std::int8_t> b(8 * 32);
  for (auto& value : a) value = static_cast<std::uint8_t>(random_());
  for (auto& value : b) value = static_cast<std::int8_t>(random_());
  for (const int a_is_signed : {0, 1}) {
    std::int32_t* const out = Upload(std::vector<std::int32_t>(16 * 8));
    Run(kMma, 1, LanguageMmaArgs{Upload(a), Upload(b), out, a_is_signed, 32});
    const std::vector<std::int32_t> d = Download(out, 16 * 8);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        int sum = 0;
        for (int k = 0; k < 32; ++k) {
          const std::uint8_t value = a[row * 32 + k];
          sum += (a_is_signed != 0 ? static_cast<std::int8_t>(value) : int{value}) *
                 b[column * 32 + k];
        }
        EXPECT_EQ(d[row * 8 + column], sum);
      }
    }
  }
}

TEST_P(Language, MatrixInstructionsOf16Inputs) {
  std::vector<std::uint8_t> a(16 * 32);
  std::vector<std::int8_t> b(8 * 32);
  for (auto& value : a) value = static_cast<std::uint8_t>(random_());
  for (auto& value : b) value = static_cast<std::int8_t>(random_());
  std::int32_t* const out = Upload(std::vector<std::int32_t>(16 * 8));
  Run(kMma, 1, LanguageMmaArgs{Upload(a), Upload(b), out, 1, 16});
  const std::vector<std::int32_t> d = Download(out, 16 * 8);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int sum = 0;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<std::int8_t>(a[row * 32 + k]) * b[column * 32 + k];
      }
      EXPECT_EQ(d[row * 8 + column], sum);
    }
  }
}

TEST_P(Language, WordsAndTheirBytes) {
  std::vector<std::uint32_t> words(4 * 64);
  for (auto& word : words) word = static_cast<std::uint32_t>(random_());
  std::vector<std::uint32_t> selectors(64);
  for (auto& selector : selectors) selector = static_cast<std::uint32_t>(random_()) & 0xffff7777U;
  std::uint32_t* const sums = Upload(std::vector<std::uint32_t>(64));
  std::uint32_t* const bytes = Upload(std::vector<std::uint32_t>(64));
  Run(kWords, 1, LanguageWordsArgs{Upload(words), Upload(selectors), sums, bytes});
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t* const w = &words[4 * i];
    const std::uint32_t sum = (w[0] >> 8 & 255U) + (w[1] >> 16) + w[2] + w[2] + 3 * w[3] +
                              5 * w[0] + 7 * w[1] + 11 * w[2] + 13 * w[3];
    EXPECT_EQ(Download(sums, 64)[i], sum);
    std::uint32_t expected = 0;
    for (std::uint32_t k = 0; k < 4; ++k) {
      const std::uint32_t place = selectors[i] >> 4 * k & 7U;
      expected |= (w[place / 4] >> place % 4 * 8 & 255U) << 8 * k;
    }
    EXPECT_EQ(Download(bytes, 64)[i], expected);
  }
}

TEST_P(Language, CopiesInTheBackground) {
  std::vector<std::uint32_t> from(2 * 64 * 4);
  for (auto& value : from) value = static_cast<std::uint32_t>(random_());
  std::uint32_t* const out = Upload(std::vector<std::uint32_t>(from.size()));
  Run(kCopy, 1, LanguageCopyArgs{Upload(from), out}, 2048);
  const std::vector<std::uint32_t> to = Download(out, from.size());
  for (int group = 0; group < 2; ++group) {
    for (int thread = 0; thread < 64; ++thread) {
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(to[(group * 64 + thread) * 4 + i], from[(group * 64 + 63 - thread) * 4 + i]);
      }
    }
  }
}

TEST_P(Language, Lanes) {
  const std::vector<float> x = Floats(64);
  std::uint32_t* const votes = Upload(std::vector<std::uint32_t>(64));
  float* const neighbors = Upload(std::vector<float>(64));
  std::uint16_t* const halves = Upload(std::vector<std::uint16_t>(64));
  std::int32_t* const dots = Upload(std::vector<std::int32_t>(64));
  Run(kLanes, 1, LanguageLanesArgs{Upload(x), votes, neighbors, halves, dots});
  for (int i = 0; i < 64; ++i) {
    std::uint32_t expected = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (x[i / 32 * 32 + lane] > 0.0f) expected |= 1U << lane;
    }
    EXPECT_EQ(Download(votes, 64)[i], expected);
    EXPECT_EQ(Download(neighbors, 64)[i], x[i / 32 * 32 + (i + 1) % 32]);
    EXPECT_EQ(Download(halves, 64)[i], F32ToF16(x[i]));
    std::int8_t bytes[4];
    std::memcpy(bytes, &x[i], 4);
    int dot = i;
    for (const std::int8_t byte : bytes) dot += byte * byte;
    EXPECT_EQ(Download(dots, 64)[i], dot);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Language, ::testing::Range(1, 6));

}  // namespace
}  // namespace kvcache::cuda::language_test
