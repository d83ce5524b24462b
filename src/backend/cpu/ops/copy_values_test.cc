#include "backend/cpu/ops/copy_values.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cpu/testing.h"
#include "support/reference_backend.h"

namespace kvcache::cpu::copy_values_test {
namespace {

using kvcache::testing::LoadValue;
using kvcache::testing::Rounded;
using kvcache::testing::StoreValue;

// A tensor in memory of its own, with gaps of `gap` bytes between rows.
struct Tensor {
  std::vector<std::byte> bytes;
  TensorView view;

  Tensor(DType type, std::array<std::int64_t, 4> dims, std::int64_t gap) {
    view = TensorView::Dense(nullptr, type, dims[0], dims[1], dims[2], dims[3]);
    view.stride_bytes[1] += gap;
    view.stride_bytes[2] = view.stride_bytes[1] * dims[1] + gap;
    view.stride_bytes[3] = view.stride_bytes[2] * dims[2];
    bytes.resize(static_cast<std::size_t>(view.stride_bytes[3] * dims[3]));
    view.data = bytes.data();
  }
  std::byte* Row(std::int64_t b, std::int64_t c, std::int64_t d) const {
    return view.data + b * view.stride_bytes[1] + c * view.stride_bytes[2] +
           d * view.stride_bytes[3];
  }
};

class CopyValuesTest : public ::testing::Test {
 protected:
  // Checks that every value of `to` is that of `from`, rounded once.
  void Check(const Tensor& from, const Tensor& to) {
    const auto& dims = from.view.dims;
    std::int64_t n = 0;
    for (std::int64_t d = 0; d < dims[3]; ++d) {
      for (std::int64_t c = 0; c < dims[2]; ++c) {
        for (std::int64_t b = 0; b < dims[1]; ++b) {
          for (std::int64_t a = 0; a < dims[0]; ++a, ++n) {
            ASSERT_EQ(LoadValue(to.view.dtype, to.Row(b, c, d), a),
                      Rounded(to.view.dtype, LoadValue(from.view.dtype, from.Row(b, c, d), a)))
                << n;
          }
        }
      }
    }
  }
  void Fill(const Tensor& tensor) {
    const auto& dims = tensor.view.dims;
    std::int64_t n = 0;
    for (std::int64_t d = 0; d < dims[3]; ++d) {
      for (std::int64_t c = 0; c < dims[2]; ++c) {
        for (std::int64_t b = 0; b < dims[1]; ++b) {
          for (std::int64_t a = 0; a < dims[0]; ++a, ++n) {
            StoreValue(tensor.view.dtype, tensor.Row(b, c, d), a,
                       static_cast<float>(n % 1009) * 0.37f - 100.0f);
          }
        }
      }
    }
  }

  ThreadPool pool_{2};
};

TEST_F(CopyValuesTest, AllTypesAndStrides) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (const std::array<std::int64_t, 4> dims : {std::array<std::int64_t, 4>{5, 3, 2, 2},
                                                 {1, 1, 1, 1},
                                                 {200000, 1, 1, 1},
                                                 {7, 9000, 2, 1}}) {
    for (const DType source : kTypes) {
      for (const DType target : kTypes) {
        for (const std::int64_t gap : {0, 12}) {
          Tensor from(source, dims, gap);
          Tensor to(target, dims, 24 - gap);
          Fill(from);
          const Status status = CopyValues(pool_, from.view, to.view);
          ASSERT_TRUE(status.ok()) << status.message();
          Check(from, to);
        }
      }
    }
  }
}

TEST_F(CopyValuesTest, Refusals) {
  const Tensor a(DType::kF32, {4, 2, 1, 1}, 0);
  const Tensor b(DType::kF32, {4, 3, 1, 1}, 0);
  TensorView i8 = a.view;
  i8.dtype = DType::kI8;
  TensorView spread = a.view;
  spread.stride_bytes[0] = 8;
  EXPECT_EQ(CopyValues(pool_, a.view, b.view).message(),
            "copy of f32 [4, 2, 1, 1] to f32 [4, 3, 1, 1]: sizes must be equal");
  EXPECT_EQ(CopyValues(pool_, a.view, i8).message(),
            "copy of f32 [4, 2, 1, 1] to i8 [4, 2, 1, 1]: types must be f32, f16 or bf16");
  EXPECT_EQ(CopyValues(pool_, spread, a.view).message(),
            "copy of f32 [4, 2, 1, 1] to f32 [4, 2, 1, 1]: rows must be dense");
}

}  // namespace
}  // namespace kvcache::cpu::copy_values_test
