// Checks writing, copying and rotating keys and values of block types. Compares every byte of every
// cell with the scalar quantizer, on every target.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/testing.h"
#include "base/arithmetic/angles.h"
#include "gtest/gtest.h"
#include "tensor/quantize.h"

namespace kvcache::cpu::kv_block_store_test {
namespace {

using testing::ForcedTarget;
using testing::MulAdd;

struct BlockCase {
  const char* name;
  DType k_type;
  DType v_type;
};
const BlockCase kCases[] = {
    {"q8_0_q8_0", DType::kQ8_0, DType::kQ8_0}, {"q4_0_q4_0", DType::kQ4_0, DType::kQ4_0},
    {"q8_0_q4_0", DType::kQ8_0, DType::kQ4_0}, {"f16_q4_0", DType::kF16, DType::kQ4_0},
    {"q4_0_bf16", DType::kQ4_0, DType::kBF16}, {"q8_0_f32", DType::kQ8_0, DType::kF32},
};

constexpr KvShape kShape{3, 96, 64};  // a matrix of 32, three times per key
constexpr std::int64_t kCells = 96;

using Row = std::vector<float>;
using Bytes = std::vector<std::byte>;

Bytes Encoded(DType type, const Row& row) {
  Bytes bytes(static_cast<std::size_t>(BytesOf(type, static_cast<std::int64_t>(row.size()))));
  EXPECT_TRUE(Quantize(type, row, bytes).ok());
  return bytes;
}

Row Decoded(DType type, const Bytes& bytes, std::size_t count) {
  Row row(count);
  EXPECT_TRUE(Dequantize(type, bytes, row).ok());
  return row;
}

// Computes the transform of hadamard-inl.h, one value at a time.
Row Transformed(Row row, std::size_t size) {
  for (std::size_t part = 0; part < row.size(); part += size) {
    for (std::size_t half = 1; half < size; half *= 2) {
      for (std::size_t i = part; i < part + size; ++i) {
        if (((i - part) & half) != 0) continue;
        const float a = row[i];
        row[i] = a + row[i + half];
        row[i + half] = a - row[i + half];
      }
    }
  }
  for (float& value : row) value *= static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  return row;
}

// A layer whose cells are read by the formulas in kv_blocks.h only, and converted to the blocks of
// a model file: scale, then codes.
class Tiles {
 public:
  explicit Tiles(DType k_type, DType v_type, const KvShape& shape = kShape) {
    layer_ = {.shape = shape,
              .k_type = k_type,
              .v_type = v_type,
              .layout = KvLayout::kTiled,
              .cells = kCells};
    k_.assign(static_cast<std::size_t>(layer_.KBytes()), std::byte{0});
    v_.assign(static_cast<std::size_t>(layer_.VBytes()), std::byte{0});
    layer_.k = k_.data();
    layer_.v = v_.data();
  }

  const LayerKv& layer() const { return layer_; }
  Bytes k() const { return k_; }
  Bytes v() const { return v_; }

  Bytes Key(std::int64_t cell, int head) const {
    const std::int64_t dim = layer_.shape.k_dim;
    const std::int64_t lane = cell % 16;
    const std::byte* const tile = Tile(k_, layer_.k_type, dim, cell, head);
    return Blocks(layer_.k_type, dim, [&](std::int64_t block, std::byte* out) {
      if (layer_.k_type == DType::kQ8_0) {
        std::memcpy(out, tile + 16 * dim + (block * 16 + lane) * 2, 2);
        for (std::int64_t i = 0; i < 32; ++i) {
          const std::int64_t d = 32 * block + i;
          out[2 + i] = tile[d / 4 * 64 + lane * 4 + d % 4] ^ std::byte{0x80};
        }
      } else {
        std::memcpy(out, tile + 8 * dim + (block * 16 + lane) * 2, 2);
        for (std::int64_t i = 0; i < 16; ++i) {
          out[2 + i] = tile[((block * 4 + i / 4) * 16 + lane) * 4 + i % 4];
        }
      }
    });
  }

  Bytes Value(std::int64_t cell, int head) const {
    const std::int64_t dim = layer_.shape.v_dim;
    const std::int64_t lane = cell % 16;
    const std::byte* const tile = Tile(v_, layer_.v_type, dim, cell, head);
    const bool bytes = layer_.v_type == DType::kQ8_0;
    const std::int64_t codes = bytes ? 32 : 16;
    return Blocks(layer_.v_type, dim, [&](std::int64_t block, std::byte* out) {
      std::memcpy(out, tile + dim / 32 * codes * 16 + (block * 16 + lane) * 2, 2);
      for (std::int64_t i = 0; i < codes; ++i) {
        const std::int64_t quads = bytes ? (block * 2 + i / 16) * 4 : block * 4;
        const std::byte code = tile[((quads + lane / 4) * 16 + i % 16) * 4 + lane % 4];
        out[2 + i] = bytes ? code ^ std::byte{0x80} : code;
      }
    });
  }

 private:
  static const std::byte* Tile(const Bytes& memory, DType type, std::int64_t dim, std::int64_t cell,
                               int head) {
    return memory.data() + BytesOf(type, head * kCells * dim + cell / 16 * 16 * dim);
  }
  template <class Fill>
  static Bytes Blocks(DType type, std::int64_t dim, const Fill& fill) {
    Bytes bytes(static_cast<std::size_t>(BytesOf(type, dim)));
    for (std::int64_t block = 0; block < dim / 32; ++block) {
      fill(block, bytes.data() + block * InfoOf(type).block_bytes);
    }
    return bytes;
  }

  LayerKv layer_;
  Bytes k_;
  Bytes v_;
};

Row KeyOf(std::uint32_t seed, std::int64_t token, int head) {
  Row row(static_cast<std::size_t>(kShape.k_dim));
  for (int d = 0; d < kShape.k_dim; ++d) {
    row[static_cast<std::size_t>(d)] = 3.0f * HashValue(seed, token, head, d);
  }
  row[7] *= 50.0f;  // keys have outliers
  return row;
}
Row ValueOf(std::uint32_t seed, std::int64_t token, int head) {
  Row row(static_cast<std::size_t>(kShape.v_dim));
  for (int d = 0; d < kShape.v_dim; ++d) {
    row[static_cast<std::size_t>(d)] = 1e-3f * HashValue(seed + 1, token, head, d);
  }
  return row;
}

// Stores the tokens from `first_token` on, whose rows are a stride apart, in `cells`.
Status Store(KvBackend& backend, const Tiles& tiles, const std::vector<CellRun>& cells,
             std::uint32_t seed, std::int64_t first_token) {
  Row rows;
  std::int64_t batch = 0;
  for (const CellRun& run : cells) batch += run.length;
  for (std::int64_t i = 0; i < batch; ++i) {
    for (int h = 0; h < kShape.kv_heads; ++h) {
      const Row key = KeyOf(seed, first_token + i, h);
      const Row value = ValueOf(seed, first_token + i, h);
      rows.insert(rows.end(), key.begin(), key.end());
      rows.insert(rows.end(), value.begin(), value.end());
    }
  }
  const std::int64_t row_bytes = (kShape.k_dim + kShape.v_dim) * std::int64_t{sizeof(float)};
  TensorView k = TensorView::Dense(rows.data(), DType::kF32, kShape.k_dim, kShape.kv_heads, batch);
  k.stride_bytes = {4, row_bytes, row_bytes * kShape.kv_heads, 0};
  TensorView v = k;
  v.data += kShape.k_dim * sizeof(float);
  v.dims[0] = kShape.v_dim;
  return backend.StoreKv(tiles.layer(), k, v, cells);
}

// Checks that cell `cell` holds token `token`; -1: nothing yet, as in `fresh`. kv_store_test.cc
// checks the float types.
void ExpectCell(const Tiles& tiles, const Tiles& fresh, std::int64_t cell, std::int64_t token) {
  const LayerKv& layer = tiles.layer();
  for (int h = 0; h < kShape.kv_heads; ++h) {
    if (InfoOf(layer.k_type).block_size > 1) {
      const Bytes key = token < 0 ? fresh.Key(cell, h)
                                  : Encoded(layer.k_type, Transformed(KeyOf(7, token, h), 32));
      ASSERT_EQ(tiles.Key(cell, h), key) << cell;
    }
    if (InfoOf(layer.v_type).block_size > 1) {
      const Bytes value =
          token < 0 ? fresh.Value(cell, h) : Encoded(layer.v_type, ValueOf(7, token, h));
      ASSERT_EQ(tiles.Value(cell, h), value) << cell;
    }
  }
}

class KvBlockKernels : public ::testing::TestWithParam<BlockCase> {
 protected:
  Tiles Made() const { return Tiles(GetParam().k_type, GetParam().v_type); }
};
INSTANTIATE_TEST_SUITE_P(Types, KvBlockKernels, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(KvBlockKernels, StoreWritesTheScalarQuantizersBits) {
  for (const std::string& target : CpuTargetNames()) {
    const ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok()) << target;
    const auto backend = CpuWithThreads(2);
    const Tiles tiles = Made();
    ASSERT_TRUE(Store(*backend, tiles, {{70, 3}, {5, 40}, {95, 1}}, 7, 0).ok());
    for (std::int64_t cell = 0; cell < kCells; ++cell) {
      std::int64_t token = -1;
      if (cell >= 70 && cell < 73) token = cell - 70;
      if (cell >= 5 && cell < 45) token = cell - 5 + 3;
      if (cell == 95) token = 43;
      ExpectCell(tiles, Made(), cell, token);
    }
  }
}

// Neighbours in a tile keep their bytes, and a cell's bytes do not depend on its neighbours.
TEST_P(KvBlockKernels, StoringOneByOneEqualsStoringAtOnce) {
  const auto backend = CpuWithThreads(1);
  const Tiles at_once = Made();
  const Tiles one_by_one = Made();
  ASSERT_TRUE(Store(*backend, at_once, {{3, 50}}, 7, 0).ok());
  for (int i = 49; i >= 0; --i) {
    ASSERT_TRUE(Store(*backend, one_by_one, {{3 + i, 1}}, 8, i).ok());  // overwritten next
    ASSERT_TRUE(Store(*backend, one_by_one, {{3 + i, 1}}, 7, i).ok());
  }
  EXPECT_EQ(at_once.k(), one_by_one.k());
  EXPECT_EQ(at_once.v(), one_by_one.v());
}

TEST_P(KvBlockKernels, CopyMovesWholeCells) {
  const auto backend = CpuWithThreads(2);
  const Tiles copied = Made();
  const Tiles stored = Made();
  ASSERT_TRUE(Store(*backend, copied, {{0, kCells}}, 7, 0).ok());
  const std::vector<CellMove> moves = {{3, 50, 20}, {75, 24, 1}, {80, 0, 2}, {32, 80, 16}};
  ASSERT_TRUE(backend->CopyCells(copied.layer(), moves).ok());
  for (std::int64_t cell = 0; cell < kCells; ++cell) {
    std::int64_t from = cell;
    for (const CellMove& move : moves) {
      if (cell >= move.to && cell < move.to + move.length) from = move.from + cell - move.to;
    }
    ASSERT_TRUE(Store(*backend, stored, {{static_cast<int>(cell), 1}}, 7, from).ok());
  }
  EXPECT_EQ(copied.k(), stored.k());
  EXPECT_EQ(copied.v(), stored.v());
}

struct Shift {
  RopeParams::Pairing pairing;
  int offset;
  int first;
};
const Shift kShifts[] = {{RopeParams::Pairing::kInterleaved, -37, 0},
                         {RopeParams::Pairing::kHalves, -37, 0},
                         {RopeParams::Pairing::kHalves, 5000, 61}};
const std::vector<float> kFrequencies = {1.0f, 0.3f, 0.01f, 2.5e-4f};

RopeParams RopeOf(const Shift& shift) {
  return {.pairing = shift.pairing, .dims = 8, .inv_freq = kFrequencies, .first = shift.first};
}

// Rotates a key by the offset, one pair after another, with the target's multiply-add.
Row Rotated(Row key, const Shift& shift, const MulAdd& mul_add) {
  for (std::size_t i = 0; i < kFrequencies.size(); ++i) {
    const bool halves = shift.pairing == RopeParams::Pairing::kHalves;
    const double angle = shift.offset * static_cast<double>(kFrequencies[i]);
    const arithmetic::SineCosine turn = arithmetic::SinCos(angle);
    const auto c = static_cast<float>(turn.cosine);
    const auto s = static_cast<float>(turn.sine);
    const std::size_t first = static_cast<std::size_t>(shift.first);
    float& a = key[first + (halves ? i : 2 * i)];
    float& b = key[first + (halves ? i + kFrequencies.size() : 2 * i + 1)];
    const float rotated = mul_add(a, c, -(b * s));
    b = mul_add(a, s, b * c);
    a = rotated;
  }
  return key;
}

class KvBlockShift : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, KvBlockShift, ::testing::Values(DType::kQ8_0, DType::kQ4_0),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

TEST_P(KvBlockShift, ReadsRotatesAndQuantizesAgain) {
  const DType type = GetParam();
  for (const std::string& target : CpuTargetNames()) {
    const ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok()) << target;
    const auto backend = CpuWithThreads(2);
    for (const Shift& shift : kShifts) {
      const Tiles tiles(type, DType::kQ8_0);
      ASSERT_TRUE(Store(*backend, tiles, {{0, kCells}}, 7, 0).ok());
      const Bytes values = tiles.v();
      const CellRun cells[] = {{5, 44}, {63, 2}};
      ASSERT_TRUE(backend->ShiftKeys(tiles.layer(), cells, shift.offset, RopeOf(shift)).ok());
      EXPECT_EQ(tiles.v(), values);
      for (std::int64_t cell = 0; cell < kCells; ++cell) {
        const bool rotated = (cell >= 5 && cell < 49) || cell == 63 || cell == 64;
        for (int h = 0; h < kShape.kv_heads; ++h) {
          Bytes expected = Encoded(type, Transformed(KeyOf(7, cell, h), 32));
          if (rotated) {
            const Row key = Transformed(Decoded(type, expected, 96), 32);
            expected = Encoded(type, Transformed(Rotated(key, shift, MulAdd(target)), 32));
          }
          ASSERT_EQ(tiles.Key(cell, h), expected) << target << " " << cell;
        }
      }
    }
  }
}

TEST_P(KvBlockShift, ByZeroChangesNoByte) {
  const auto backend = CpuWithThreads(1);
  const Tiles tiles(GetParam(), DType::kF16);
  ASSERT_TRUE(Store(*backend, tiles, {{0, kCells}}, 7, 0).ok());
  const Bytes keys = tiles.k();
  const CellRun cells[] = {{0, kCells}};
  ASSERT_TRUE(backend->ShiftKeys(tiles.layer(), cells, 0, RopeOf(kShifts[0])).ok());
  ASSERT_TRUE(backend->ShiftKeys(tiles.layer(), cells, 9, {}).ok());
  EXPECT_EQ(tiles.k(), keys);
}

// Blocks whose rounding is difficult. They are stored as V, which is not transformed.
struct SpecialBlock {
  const char* name;
  std::vector<float> values;  // the first of 32, the rest are `rest`
  float rest;
};
const SpecialBlock kSpecial[] = {
    {"zeros", {}, 0.0f},
    {"negative zeros", {-0.0f}, -0.0f},
    {"both ends, negative first", {-3.0f, 3.0f}, 0.4f},
    {"both ends, positive first", {0.25f, 3.0f, -3.0f}, 0.4f},
    {"both ends, far apart", {0.25f, 3.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -3.0f}, 1},
    {"ties of q8_0", {127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 126.5f, -126.5f}, 0.0f},
    {"ties of q4_0", {-8.0f, 0.5f, -0.5f, 7.5f, 7.49f, -7.5f, 6.5f}, 0.0f},
    {"too small to divide by", {1e-42f, -1e-42f, 3e-40f}, 1e-44f},
    {"a scale below f16's", {1e-8f}, -3e-9f},
    {"a scale beyond f16's", {1e9f, -1e9f, 3e7f}, 1e8f},
    {"the largest", {3.4028235e38f, -3.4028235e38f}, 1e38f},
};

TEST(KvBlockKernelsExactness, DifficultBlocksHaveTheScalarQuantizersBits) {
  const KvShape shape{1, 32, 32};
  for (const std::string& target : CpuTargetNames()) {
    const ForcedTarget forced(target);
    const auto backend = CpuWithThreads(1);
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
      for (const SpecialBlock& special : kSpecial) {
        Row row(32, special.rest);
        std::copy(special.values.begin(), special.values.end(), row.begin());
        const Tiles tiles(DType::kF32, type, shape);
        const TensorView view = TensorView::Dense(row.data(), DType::kF32, 32, 1, 1);
        const CellRun cells[] = {{21, 1}};
        ASSERT_TRUE(backend->StoreKv(tiles.layer(), view, view, cells).ok());
        EXPECT_EQ(tiles.Value(21, 0), Encoded(type, row))
            << target << " " << InfoOf(type).name << ": " << special.name;
      }
    }
  }
}

// A NaN affects its own block and no other cell.
TEST(KvBlockKernelsExactness, BlocksWithNaNBecomeNaN) {
  const KvShape shape{1, 64, 64};
  for (const std::string& target : CpuTargetNames()) {
    const ForcedTarget forced(target);
    const auto backend = CpuWithThreads(1);
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
      for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        Row row(64, 0.5f);
        row[40] = bad;
        const Tiles tiles(type, type, shape);
        const Tiles fresh(type, type, shape);
        const TensorView view = TensorView::Dense(row.data(), DType::kF32, 64, 1, 1);
        const CellRun cells[] = {{21, 1}};
        ASSERT_TRUE(backend->StoreKv(tiles.layer(), view, view, cells).ok());
        const Row key = Decoded(type, tiles.Key(21, 0), 64);
        const Row value = Decoded(type, tiles.Value(21, 0), 64);
        for (std::size_t i = 0; i < 64; ++i) {
          EXPECT_TRUE(std::isnan(key[i])) << target << i;  // the Hadamard matrix spreads the NaN
          EXPECT_EQ(std::isnan(value[i]), i >= 32) << target << i;
        }
        EXPECT_EQ(tiles.Key(20, 0), fresh.Key(20, 0));
        EXPECT_EQ(tiles.Value(22, 0), fresh.Value(22, 0));
      }
    }
  }
}

TEST(KvBlockKernelsErrors, NameTypesAndSizesThatBlocksCannotHold) {
  const auto backend = CpuWithThreads(1);
  const auto check = [&](DType k, DType v, KvLayout layout) {
    const Status status = backend->CheckKvTypes(k, v, layout);
    return status.ok() ? "ok" : status.message();
  };
  EXPECT_EQ(check(DType::kQ8_0, DType::kF16, KvLayout::kTiled), "ok");
  EXPECT_EQ(check(DType::kQ8_0, DType::kF16, KvLayout::kPlain),
            "K of type q8_0 and V of type f16: block types need the tiled layout");
  EXPECT_EQ(check(DType::kF32, DType::kQ4_0, KvLayout::kPlain),
            "K of type f32 and V of type q4_0: block types need the tiled layout");
  EXPECT_EQ(
      check(DType::kQ8_0, DType::kQ5_0, KvLayout::kTiled),
      "no kernels for K of type q8_0 and V of type q5_0; types must be f32, f16, bf16, q8_0 or "
      "q4_0");

  Row memory(4096);
  const auto store = [&](LayerKv layer) {
    layer.layout = KvLayout::kTiled;
    layer.cells = 16;
    layer.k = layer.v = reinterpret_cast<std::byte*>(memory.data());
    const TensorView k = TensorView::Dense(memory.data(), DType::kF32, layer.shape.k_dim, 1, 1);
    const TensorView v = TensorView::Dense(memory.data(), DType::kF32, layer.shape.v_dim, 1, 1);
    const CellRun cells[] = {{0, 1}};
    const Status status = backend->StoreKv(layer, k, v, cells);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_EQ(
      store({.shape = {1, 80, 64}, .k_type = DType::kQ8_0, .v_type = DType::kF16}),
      "K of type q8_0 and V of type f16: head sizes are 80 and 64; must be multiples of 32 for "
      "block types");
  EXPECT_EQ(
      store({.shape = {1, 64, 80}, .k_type = DType::kF16, .v_type = DType::kQ4_0}),
      "K of type f16 and V of type q4_0: head sizes are 64 and 80; must be multiples of 32 for "
      "block types");
  EXPECT_EQ(
      store({.shape = {1, 64, 32, true}, .k_type = DType::kQ4_0, .v_type = DType::kQ4_0}),
      "K of type q4_0 cannot contain V; use f32, f16, bf16 or q8_0 for models whose V is in K");
  EXPECT_EQ(
      store({.shape = {1, 64, 48, true}, .k_type = DType::kQ8_0, .v_type = DType::kQ8_0}),
      "K of type q8_0 and V of type q8_0: head sizes are 64 and 48; must be multiples of 32 for "
      "block types");
}

}  // namespace
}  // namespace kvcache::cpu::kv_block_store_test
