// Checks writing and rotating latents (kv_blocks.h), value by value, on every target.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"
#include "tensor/float_conversion.h"

namespace kvcache::cpu::kv_latent_store_test {
namespace {

using testing::ForcedTarget;
using Row = std::vector<float>;

constexpr std::int64_t kCells = 48;

// A layer of two heads, whose cells are zeros at first.
class Latents {
 public:
  Latents() {
    layer_ = {.shape = {2, 160, 128, true},
              .k_type = DType::kQ8_0,
              .v_type = DType::kQ8_0,
              .layout = KvLayout::kTiled,
              .cells = kCells};
    k_.assign(static_cast<std::size_t>(layer_.KBytes()), std::byte{0});
    layer_.k = k_.data();
  }

  const LayerKv& layer() const { return layer_; }
  StoredInBlock At(std::int64_t cell, int head, int d) const {
    return StoredKey(layer_, head, cell, d);
  }
  // Stores random rows in the cells from `cell` on and returns them, head after head of each token.
  std::vector<Row> Store(KvBackend& backend, int cell, int tokens) {
    std::vector<Row> rows;
    std::vector<float> all;
    for (int i = 0; i < 2 * tokens; ++i) {
      Row row;
      for (int d = 0; d < layer_.shape.k_dim; ++d) row.push_back(3.0f * HashValue(5, i, 0, d));
      row[7] *= 50.0f;
      all.insert(all.end(), row.begin(), row.end());
      rows.push_back(std::move(row));
    }
    const TensorView k = TensorView::Dense(all.data(), DType::kF32, layer_.shape.k_dim, 2, tokens);
    const CellRun cells[] = {{cell, tokens}};
    const Status status = backend.StoreKv(layer_, k, ValuesInKeys(k, layer_.shape.v_dim), cells);
    EXPECT_TRUE(status.ok()) << status.message();
    return rows;
  }

 private:
  LayerKv layer_;
  std::vector<std::byte> k_;
};

// Checks that the values from `first` on, which are transformed, have one scale and the codes that it gives.
void ExpectGroup(const Latents& latents, std::int64_t cell, int head, int first,
                 std::span<const float> values) {
  float max = 0.0f;
  for (const float x : values) max = std::max(max, std::fabs(x));
  const float scale = max / 127.0f;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const StoredInBlock stored = latents.At(cell, head, first + static_cast<int>(i));
    ASSERT_EQ(stored.scale, F16ToF32(F32ToF16(scale))) << cell << " " << first + i;
    ASSERT_EQ(stored.code, static_cast<int>(std::round(values[i] * (1.0f / scale))))
        << cell << " " << first + i;
  }
}

// The blocks of the value share the scale of its largest magnitude; the rest is stored as another key.
TEST(KvLatents, StoreWritesOneScaleForTheValue) {
  for (const std::string& target : CpuTargetNames()) {
    const ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok()) << target;
    const auto backend = CpuWithThreads(2);
    Latents latents;
    std::vector<Row> rows = latents.Store(*backend, 5, 30);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::span<float> row(rows[i]);
      TurnChain(row.first(128), 128);
      TurnChain(row.subspan(128), 32);
      const auto cell = static_cast<std::int64_t>(5 + i / 2);
      ExpectGroup(latents, cell, static_cast<int>(i % 2), 0, row.first(128));
      ExpectGroup(latents, cell, static_cast<int>(i % 2), 128, row.subspan(128));
    }
  }
}

TEST(KvLatents, AShiftRotatesTheRestAndLeavesTheValue) {
  const auto backend = CpuWithThreads(2);
  Latents shifted;
  Latents stored;
  shifted.Store(*backend, 3, 40);
  stored.Store(*backend, 3, 40);
  const std::vector<float> frequencies = {1.0f, 0.1f};
  const RopeParams rope{.pairing = RopeParams::Pairing::kHalves,
                        .dims = 4,
                        .inv_freq = frequencies,
                        .first = stored.layer().shape.v_dim};
  const CellRun cells[] = {{10, 20}};
  ASSERT_TRUE(backend->ShiftKeys(shifted.layer(), cells, 5, rope).ok());
  for (std::int64_t cell = 0; cell < kCells; ++cell) {
    for (int head = 0; head < 2; ++head) {
      bool same = true;
      for (int d = 0; d < stored.layer().shape.k_dim; ++d) {
        const StoredInBlock before = stored.At(cell, head, d);
        const StoredInBlock after = shifted.At(cell, head, d);
        const bool equal = before.scale == after.scale && before.code == after.code;
        ASSERT_TRUE(equal || d >= stored.layer().shape.v_dim) << cell << " " << d;
        same = same && equal;
      }
      EXPECT_EQ(same, cell < 10 || cell >= 30) << cell;
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::kv_latent_store_test
