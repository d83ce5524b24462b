// Checks writing, copying and rotating cached keys and values, cell by cell, against scalar code.
#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"

namespace kvcache::cpu::kv_store_test {
namespace {

struct KvCase {
  const char* name;
  KvLayout layout;
  bool transposed;
  DType k_type;
  DType v_type;
  bool in_keys = false;  // V is in K
};

const KvCase kCases[] = {
    {"tiled_f16", KvLayout::kTiled, false, DType::kF16, DType::kF16},
    {"tiled_bf16_f32", KvLayout::kTiled, false, DType::kBF16, DType::kF32},
    {"tiled_f32_bf16", KvLayout::kTiled, false, DType::kF32, DType::kBF16},
    {"plain_f16", KvLayout::kPlain, false, DType::kF16, DType::kBF16},
    {"plain_f32", KvLayout::kPlain, false, DType::kF32, DType::kF32},
    {"plain_bf16", KvLayout::kPlain, false, DType::kBF16, DType::kF16},
    {"transposed_f16", KvLayout::kPlain, true, DType::kF16, DType::kF16},
    {"tiled_in_keys", KvLayout::kTiled, false, DType::kF16, DType::kF16, true},
    {"plain_in_keys", KvLayout::kPlain, false, DType::kBF16, DType::kBF16, true},
};

constexpr KvShape kShape{3, 70, 19};
constexpr std::int64_t kCells = 96;

float ReadOne(DType type, const std::byte* base, std::int64_t index) {
  if (type == DType::kF32) return reinterpret_cast<const float*>(base)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(base)[index];
  return type == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

// A layer's storage, read one value at a time by the formulas of kvcache/kv.h.
class Storage1 {
 public:
  explicit Storage1(const KvCase& c) {
    layer_ = {.shape = {kShape.kv_heads, kShape.k_dim, kShape.v_dim, c.in_keys},
              .k_type = c.k_type,
              .v_type = c.v_type,
              .layout = c.layout,
              .v_transposed = c.transposed,
              .cells = kCells};
    k_.assign(static_cast<std::size_t>(layer_.KBytes()), std::byte{0});
    v_.assign(static_cast<std::size_t>(layer_.VBytes()), std::byte{0});
    layer_.k = k_.data();
    layer_.v = c.in_keys ? nullptr : v_.data();
  }
  const LayerKv& layer() const { return layer_; }

  float Key(std::int64_t cell, int head, int d) const {
    const std::int64_t index =
        layer_.layout == KvLayout::kTiled
            ? ((head * (kCells / 16) + cell / 16) * kShape.k_dim + d) * 16 + cell % 16
            : (cell * kShape.kv_heads + head) * kShape.k_dim + d;
    return ReadOne(layer_.k_type, layer_.k, index);
  }
  float Value(std::int64_t cell, int head, int d) const {
    if (layer_.shape.v_in_k) return Key(cell, head, d);
    std::int64_t index = (cell * kShape.kv_heads + head) * kShape.v_dim + d;
    if (layer_.layout == KvLayout::kTiled) index = (head * kCells + cell) * kShape.v_dim + d;
    if (layer_.v_transposed) index = (head * kShape.v_dim + d) * kCells + cell;
    return ReadOne(layer_.v_type, layer_.v, index);
  }

  Status Store(KvBackend& backend, const std::vector<CellRun>& cells, std::uint32_t seed) {
    std::vector<float> rows;  // K and V interleaved: rows have a stride
    std::int64_t batch = 0;
    for (const CellRun& run : cells) {
      for (std::int64_t cell = run.cell; cell < run.cell + run.length; ++cell, ++batch) {
        for (int h = 0; h < kShape.kv_heads; ++h) {
          for (int d = 0; d < kShape.k_dim; ++d) rows.push_back(KeyOf(seed, cell, h, d));
          for (int d = 0; d < kShape.v_dim; ++d) rows.push_back(ValueOf(seed, cell, h, d));
        }
      }
    }
    const std::int64_t row_bytes = (kShape.k_dim + kShape.v_dim) * std::int64_t{sizeof(float)};
    TensorView k =
        TensorView::Dense(rows.data(), DType::kF32, kShape.k_dim, kShape.kv_heads, batch);
    k.stride_bytes = {4, row_bytes, row_bytes * kShape.kv_heads, 0};
    TensorView v = k;
    v.data += kShape.k_dim * sizeof(float);
    v.dims[0] = kShape.v_dim;
    if (layer_.shape.v_in_k) v = ValuesInKeys(k, kShape.v_dim);
    return backend.StoreKv(layer_, k, v, cells);
  }

  static float KeyOf(std::uint32_t seed, std::int64_t cell, int head, int d) {
    return 3.0f * HashValue(seed, cell, head, d);
  }
  static float ValueOf(std::uint32_t seed, std::int64_t cell, int head, int d) {
    return HashValue(seed + 1, cell, head, d) * 1e-5f;  // some are subnormal as f16
  }

  // Checks that cell `cell` holds the values that `seed` gives for cell `made_for`; seed 0: the
  // cell was not written.
  void ExpectCell(std::int64_t cell, std::uint32_t seed, std::int64_t made_for) const {
    for (int h = 0; h < kShape.kv_heads; ++h) {
      for (int d = 0; d < kShape.k_dim; ++d) {
        const float key = seed == 0 ? 0.0f : KeyOf(seed, made_for, h, d);
        ASSERT_EQ(Key(cell, h, d), RoundToType(layer_.k_type, key)) << cell << " " << h << " " << d;
      }
      for (int d = 0; d < kShape.v_dim; ++d) {
        const auto made = layer_.shape.v_in_k ? KeyOf : ValueOf;
        const float value = seed == 0 ? 0.0f : made(seed, made_for, h, d);
        ASSERT_EQ(Value(cell, h, d), RoundToType(layer_.v_type, value)) << cell << " " << h;
      }
    }
  }

 private:
  LayerKv layer_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
};

class KvKernels : public ::testing::TestWithParam<KvCase> {};
INSTANTIATE_TEST_SUITE_P(Types, KvKernels, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(KvKernels, StoreWritesItsCellsAndNoOthers) {
  const auto backend = CpuWithThreads(2);
  Storage1 storage(GetParam());
  const std::vector<CellRun> cells = {{70, 3}, {5, 40}, {95, 1}};
  ASSERT_TRUE(storage.Store(*backend, cells, 7).ok());
  for (std::int64_t cell = 0; cell < kCells; ++cell) {
    const bool stored = (cell >= 70 && cell < 73) || (cell >= 5 && cell < 45) || cell == 95;
    storage.ExpectCell(cell, stored ? 7 : 0, cell);
  }
}

TEST_P(KvKernels, CopyMovesWholeCells) {
  const auto backend = CpuWithThreads(2);
  Storage1 storage(GetParam());
  ASSERT_TRUE(storage.Store(*backend, {{0, kCells}}, 7).ok());
  const std::vector<CellMove> moves = {{3, 50, 20}, {75, 24, 1}, {80, 0, 2}, {32, 80, 16}};
  ASSERT_TRUE(backend->CopyCells(storage.layer(), moves).ok());
  for (std::int64_t cell = 0; cell < kCells; ++cell) {
    std::int64_t from = cell;
    for (const CellMove& move : moves) {
      if (cell >= move.to && cell < move.to + move.length) from = move.from + cell - move.to;
    }
    storage.ExpectCell(cell, 7, from);
  }
}

TEST_P(KvKernels, ShiftRotatesItsCellsAndNoOthers) {
  const auto backend = CpuWithThreads(2);
  const std::vector<float> inv_freq = {1.0f, 0.3f, 0.01f, 2.5e-4f};
  // The rotated values come first or elsewhere in the key, but never where V is in K.
  const int begin = GetParam().in_keys ? kShape.v_dim : 0;
  for (const auto pairing : {RopeParams::Pairing::kInterleaved, RopeParams::Pairing::kHalves}) {
    for (const auto& [offset, first] : {std::pair{-37, begin}, {5000, begin}, {5000, 62}}) {
      Storage1 storage(GetParam());
      ASSERT_TRUE(storage.Store(*backend, {{0, kCells}}, 7).ok());
      const std::vector<CellRun> cells = {{5, 44}, {63, 2}};
      const RopeParams rope{.pairing = pairing, .dims = 8, .inv_freq = inv_freq, .first = first};
      ASSERT_TRUE(backend->ShiftKeys(storage.layer(), cells, offset, rope).ok());
      const double unit = GetParam().k_type == DType::kF32   ? 0x1p-24
                          : GetParam().k_type == DType::kF16 ? 0x1p-11
                                                             : 0x1p-8;
      for (std::int64_t cell = 0; cell < kCells; ++cell) {
        const bool rotated = (cell >= 5 && cell < 49) || cell == 63 || cell == 64;
        for (int h = 0; h < kShape.kv_heads; ++h) {
          for (int i = 0; i < 4; ++i) {
            const bool interleaved = pairing == RopeParams::Pairing::kInterleaved;
            const int da = first + (interleaved ? 2 * i : i);
            const int db = first + (interleaved ? 2 * i + 1 : i + 4);
            const double a = RoundToType(GetParam().k_type, Storage1::KeyOf(7, cell, h, da));
            const double b = RoundToType(GetParam().k_type, Storage1::KeyOf(7, cell, h, db));
            const double angle =
                rotated ? offset * static_cast<double>(inv_freq[static_cast<std::size_t>(i)]) : 0.0;
            // One rounding to the storage type; sine, cosine and two f32 operations before it.
            const double bound = rotated ? unit * 4.3 + 6 * 0x1p-24 * 6.0 : 0.0;
            ASSERT_NEAR(storage.Key(cell, h, da), a * std::cos(angle) - b * std::sin(angle), bound);
            ASSERT_NEAR(storage.Key(cell, h, db), a * std::sin(angle) + b * std::cos(angle), bound);
          }
          for (int d = 0; d < kShape.k_dim; ++d) {
            if (d >= first && d < first + 8) continue;
            ASSERT_EQ(storage.Key(cell, h, d),
                      RoundToType(GetParam().k_type, Storage1::KeyOf(7, cell, h, d)));
          }
        }
      }
    }
  }
}

TEST(KvKernelsExactness, ShiftLeavesTheSameBitsInBothLayouts) {
  const auto backend = CpuWithThreads(2);
  const std::vector<float> inv_freq = {1.0f, 0.3f, 0.01f};
  for (const auto pairing : {RopeParams::Pairing::kInterleaved, RopeParams::Pairing::kHalves}) {
    Storage1 tiled(kCases[2]);
    Storage1 plain(kCases[4]);
    const RopeParams rope{.pairing = pairing, .dims = 6, .inv_freq = inv_freq};
    for (Storage1* storage : {&tiled, &plain}) {
      ASSERT_TRUE(storage->Store(*backend, {{0, kCells}}, 7).ok());
      const CellRun cells[] = {{3, 50}};
      ASSERT_TRUE(backend->ShiftKeys(storage->layer(), cells, -12, rope).ok());
    }
    for (std::int64_t cell = 0; cell < kCells; ++cell) {
      for (int d = 0; d < 8; ++d) ASSERT_EQ(tiled.Key(cell, 1, d), plain.Key(cell, 1, d));
    }
  }
}

// Uses values whose rounding is difficult, on every target: ties, overflow, subnormals, infinities,
// NaN.
TEST(KvKernelsExactness, NarrowingRoundsToNearestEven) {
  const float special[] = {0.0f,
                           -0.0f,
                           1.0f + 0x1p-11f,
                           1.0f + 3 * 0x1p-11f,
                           65519.0f,
                           65520.0f,
                           -1e30f,
                           0x1p-25f,
                           0x1.8p-25f,
                           -0x1p-24f,
                           0x1.ffep-15f,
                           1.0f + 0x1p-8f,
                           1.0f + 3 * 0x1p-8f,
                           INFINITY,
                           -INFINITY,
                           NAN,
                           3.3895314e38f,
                           0x1p-133f};
  constexpr int kDim = sizeof(special) / sizeof(special[0]);
  for (const std::string& target : CpuTargetNames()) {
    const testing::ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok());
    const auto backend = CpuWithThreads(1);
    for (const DType type : {DType::kF16, DType::kBF16}) {
      std::vector<std::uint16_t> k(16 * kDim);
      std::vector<std::uint16_t> v(16 * kDim);
      const LayerKv layer{.shape = {1, kDim, kDim},
                          .k_type = type,
                          .v_type = type,
                          .layout = KvLayout::kTiled,
                          .cells = 16,
                          .k = reinterpret_cast<std::byte*>(k.data()),
                          .v = reinterpret_cast<std::byte*>(v.data())};
      std::vector<float> row(special, special + kDim);
      const TensorView view = TensorView::Dense(row.data(), DType::kF32, kDim, 1, 1);
      const CellRun cells[] = {{2, 1}};
      ASSERT_TRUE(backend->StoreKv(layer, view, view, cells).ok());
      for (int d = 0; d < kDim; ++d) {
        const std::uint16_t expected =
            type == DType::kF16 ? F32ToF16(special[d]) : F32ToBf16(special[d]);
        EXPECT_EQ(k[static_cast<std::size_t>(d * 16 + 2)], expected) << target << d;
        EXPECT_EQ(v[static_cast<std::size_t>(2 * kDim + d)], expected) << target << d;
      }
    }
  }
}

TEST(KvKernelsErrors, NameBothSides) {
  const auto backend = CpuWithThreads(1);
  Storage1 storage(kCases[0]);
  std::vector<float> memory(4096);
  const auto view = [&](std::int64_t d, std::int64_t heads, std::int64_t batch) {
    return TensorView::Dense(memory.data(), DType::kF32, d, heads, batch);
  };
  const CellRun two[] = {{94, 2}};
  const CellRun beyond[] = {{94, 3}};
  const auto message = [](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message(backend->StoreKv(storage.layer(), view(70, 3, 3), view(19, 3, 2), two)),
            "store: k is [70, 3, 3]; must be [70, 3, 2] for these cells");
  EXPECT_EQ(message(backend->StoreKv(storage.layer(), view(70, 3, 2), view(19, 2, 2), two)),
            "store: v is [19, 2, 2]; must be [19, 3, 2] for these cells");
  EXPECT_EQ(message(backend->StoreKv(storage.layer(), view(70, 3, 3), view(19, 3, 3), beyond)),
            "store: 3 cells from 94 are not within the layer's 96");
  const CellMove move[] = {{90, 95, 2}};
  EXPECT_EQ(message(backend->CopyCells(storage.layer(), move)),
            "copy to: 2 cells from 95 are not within the layer's 96");
  const std::vector<float> inv_freq(3);
  EXPECT_NE(message(backend->ShiftKeys(storage.layer(), two, 1, {.dims = 8, .inv_freq = inv_freq}))
                .find("rope has 8 dims and 3 frequencies"),
            std::string::npos);
  EXPECT_NE(message(backend->ShiftKeys(storage.layer(), two, 1,
                                       {.dims = 6, .inv_freq = inv_freq, .first = 65}))
                .find("rope has 6 dims and 3 frequencies"),
            std::string::npos);
}

TEST(KvKernelsErrors, ValuesInKeysAreNotRotatedAndNeedValuesInKeys) {
  const auto backend = CpuWithThreads(1);
  const Storage1 storage(kCases[7]);
  ASSERT_EQ(storage.layer().VBytes(), 0);
  const std::vector<float> inv_freq(3);
  const CellRun two[] = {{94, 2}};
  EXPECT_EQ(backend
                ->ShiftKeys(storage.layer(), two, 1,
                            {.dims = 6, .inv_freq = inv_freq, .first = kShape.v_dim - 1})
                .message(),
            "shift: rope begins at value 18 of a key; must be at least 19, since the values before "
            "are V");
  std::vector<float> memory(4096);
  const TensorView k = TensorView::Dense(memory.data(), DType::kF32, 70, 3, 2);
  const TensorView v = TensorView::Dense(memory.data(), DType::kF32, 19, 3, 2);
  EXPECT_EQ(backend->StoreKv(storage.layer(), k, v, two).message(),
            "store: v is [19, 3, 2]; must be [19, 3, 2] in k for these cells");
  EXPECT_EQ(backend->StoreKv(storage.layer(), k, ValuesInKeys(k, 20), two).message(),
            "store: v is [20, 3, 2] in k; must be [19, 3, 2] in k for these cells");
  LayerKv wide = storage.layer();
  wide.shape.v_dim = 71;
  EXPECT_EQ(
      backend->StoreKv(wide, k, ValuesInKeys(k, 71), two).message(),
      "V in K: v_dim is 71, k_dim is 70; v_dim must be at most k_dim, with one type for both and V "
      "not transposed");
}

}  // namespace
}  // namespace kvcache::cpu::kv_store_test
