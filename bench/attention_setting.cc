#include "attention_setting.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cpu/common/kv_blocks_testing.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "tensor/float_conversion.h"

namespace kvcache::bench {
namespace {

float Noise(std::uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  i ^= i >> 29;
  i *= 0xbf58476d1ce4e5b9ull;
  return static_cast<float>(static_cast<double>(i >> 11) * 0x1p-52 - 1.0);
}

float Load(DType type, const std::byte* base, std::int64_t index) {
  std::uint16_t half = 0;
  float value = 0.0f;
  if (type == DType::kF32) {
    std::memcpy(&value, base + index * 4, sizeof value);
    return value;
  }
  std::memcpy(&half, base + index * 2, sizeof half);
  return type == DType::kF16 ? F16ToF32(half) : Bf16ToF32(half);
}

}  // namespace

std::string AttentionCase::Type() const {
  const std::string k(InfoOf(k_type).name);
  return k_type == v_type ? k : k + "-" + std::string(InfoOf(v_type).name);
}

std::string AttentionCase::Name() const {
  return kind + " history " + std::to_string(history) + " queries " + std::to_string(queries) +
         " batch " + std::to_string(batch) + " head " + std::to_string(head_dim) + " " + Type();
}

double AttentionCase::GigaOperations() const {
  const double seen = history - (queries - 1) / 2.0;
  return 2e-9 * batch * queries * kHeads * head_dim * seen;
}

std::int64_t AttentionCase::NeededBytes() const {
  const std::int64_t tokens =
      window > 0 ? std::int64_t{batch} * std::min(window, history) : Cells();
  const std::int64_t values = tokens * kKvHeads * head_dim;
  return BytesOf(k_type, values) + BytesOf(v_type, values);
}

std::int64_t AttentionCase::LayerBytes() const {
  AttentionCase whole = *this;
  whole.window = 0;
  return whole.NeededBytes();
}

AttentionSetting::AttentionSetting(ThreadPool& pool, const AttentionCase& c,
                                   std::int64_t cold_bytes)
    : pool_(pool), case_(c) {
  const std::int64_t cells = c.Cells();
  if (cells % kCellTile != 0 || c.shared % kPeriod != 0) std::abort();
  layers_ = static_cast<int>((cold_bytes + c.LayerBytes() - 1) / c.LayerBytes());
  layers_ = std::max(layers_, 1);
  layer_ = {.shape = {AttentionCase::kKvHeads, c.head_dim, c.head_dim},
            .k_type = c.k_type,
            .v_type = c.v_type,
            .layout = KvLayout::kTiled,
            .v_transposed = false,
            .cells = cells};
  auto memory = AlignedBuffer::Make(static_cast<std::size_t>(layers_ * c.LayerBytes()));
  if (!memory.ok()) return;
  memory_ = std::move(memory).value();
  layer_.k = memory_.data();
  layer_.v = memory_.data() + layer_.KBytes();
  Store();
  AddQueries();
}

// Stores the first period through the backend and copies it along every head's stream.
void AttentionSetting::Store() {
  const int count = std::min(kPeriod, case_.history);
  std::vector<float> k(static_cast<std::size_t>(count * AttentionCase::kKvHeads * case_.head_dim));
  std::vector<float> v(k.size());
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = Noise(2 * i);
    v[i] = Noise(2 * i + 1);
  }
  const CellRun cells[] = {{0, count}};
  const auto view = [&](std::vector<float>& x) {
    return TensorView::Dense(x.data(), DType::kF32, case_.head_dim, AttentionCase::kKvHeads, count);
  };
  if (!cpu::StoreKv(pool_, workspace_, layer_, view(k), view(v), cells).ok()) std::abort();
  for (int head = 0; head < AttentionCase::kKvHeads; ++head) {
    for (const bool keys : {true, false}) {
      const DType type = keys ? layer_.k_type : layer_.v_type;
      const std::int64_t bytes = BytesOf(type, layer_.cells * case_.head_dim);
      Repeat((keys ? layer_.k : layer_.v) + head * bytes, BytesOf(type, count * case_.head_dim),
             bytes);
    }
  }
  Repeat(memory_.data(), case_.LayerBytes(), layers_ * case_.LayerBytes());
}

void AttentionSetting::Repeat(std::byte* head, std::int64_t period_bytes, std::int64_t bytes) {
  for (std::int64_t at = period_bytes; at < bytes; at += period_bytes) {
    std::memcpy(head + at, head, static_cast<std::size_t>(std::min(period_bytes, bytes - at)));
  }
}

void AttentionSetting::AddQueries() {
  runs_.resize(static_cast<std::size_t>(case_.batch));
  for (int s = 0; s < case_.batch; ++s) {
    const std::int32_t own = case_.history - case_.shared;
    auto& runs = runs_[static_cast<std::size_t>(s)];
    runs = {{{0, 0, case_.shared}, {case_.shared, case_.shared + s * own, own}}};
    histories_.push_back(case_.shared > 0 ? std::span<const HistoryRun>(runs)
                                          : std::span<const HistoryRun>(runs).last(1));
    for (int i = 0; i < case_.queries; ++i) {
      positions_.push_back(case_.history - case_.queries + i);
      index_.push_back(s);
    }
  }
  q_.resize(positions_.size() * static_cast<std::size_t>(AttentionCase::kHeads * case_.head_dim));
  for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = 3.0f * Noise(i + 12345);
  out_.resize(q_.size());
}

float AttentionSetting::Scale() const {
  return 1.0f / std::sqrt(static_cast<float>(case_.head_dim));
}

bool AttentionSetting::Run() {
  const std::int64_t tokens = static_cast<std::int64_t>(positions_.size());
  const auto view = [&](std::vector<float>& x) {
    return TensorView::Dense(x.data(), DType::kF32, case_.head_dim, AttentionCase::kHeads, tokens);
  };
  const Visibility visibility{.positions = positions_,
                              .history_of_query = index_,
                              .histories = histories_,
                              .bidirectional = {},
                              .window = case_.window};
  LayerKv layer = layer_;
  layer.k += next_ * case_.LayerBytes();
  layer.v += next_ * case_.LayerBytes();
  next_ = (next_ + 1) % layers_;
  const Status status =
      cpu::Attention(pool_, workspace_, plans_, layer, view(q_), visibility,
                     {.scale = Scale(), .soft_cap = 0.0f, .sinks = {}}, view(out_));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok();
}

std::span<const std::byte> AttentionSetting::Memory() const {
  const auto needed = static_cast<std::size_t>(layers_ * case_.NeededBytes());
  return std::span<const std::byte>(memory_.data(), memory_.size_bytes()).first(needed);
}

double AttentionSetting::Key(int cell, int kv_head, int d) const {
  if (cpu::IsKvBlockType(layer_.k_type)) {
    return static_cast<double>(cpu::StoredKey(layer_, kv_head, cell, d).Value());
  }
  const std::int64_t tile = kv_head * layer_.cells + cell / kCellTile * kCellTile;
  return static_cast<double>(
      Load(layer_.k_type, layer_.k, tile * case_.head_dim + d * kCellTile + cell % kCellTile));
}

double AttentionSetting::Value(int cell, int kv_head, int d) const {
  if (cpu::IsKvBlockType(layer_.v_type)) {
    return static_cast<double>(cpu::StoredValue(layer_, kv_head, cell, d).Value());
  }
  return static_cast<double>(
      Load(layer_.v_type, layer_.v, (kv_head * layer_.cells + cell) * case_.head_dim + d));
}

// Returns the query, multiplied by the matrix of hadamard-inl.h if the keys are.
std::vector<double> AttentionSetting::Query(std::size_t row) const {
  const auto dim = static_cast<std::size_t>(case_.head_dim);
  const float* const q = q_.data() + row * dim;
  if (!cpu::IsKvBlockType(layer_.k_type)) return {q, q + dim};
  const auto size = static_cast<std::size_t>(cpu::HadamardSize(case_.head_dim));
  std::vector<double> turned(dim, 0.0);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = i / size * size; j < (i / size + 1) * size; ++j) {
      const double sign = __builtin_parityll(i % size & j % size) != 0 ? -1.0 : 1.0;
      turned[i] += sign * static_cast<double>(q[j]) / std::sqrt(static_cast<double>(size));
    }
  }
  return turned;
}

double AttentionSetting::RowError(std::size_t row) const {
  constexpr int kHeads = AttentionCase::kHeads;
  const std::size_t token = row / kHeads;
  const int kv_head = static_cast<int>(row % kHeads) / (kHeads / AttentionCase::kKvHeads);
  const std::vector<double> q = Query(row);
  const int end = positions_[token] + 1;
  const int begin = case_.window > 0 ? std::max(0, end - case_.window) : 0;
  std::vector<double> weights(kPeriod, 0.0);
  double total = 0.0;
  for (int p = 0; p < kPeriod; ++p) {
    const auto up_to = [&](int position) { return (position - p + kPeriod - 1) / kPeriod; };
    const int copies = up_to(std::max(end, p)) - up_to(std::max(begin, p));
    double s = 0.0;
    for (int d = 0; d < case_.head_dim; ++d)
      s += q[static_cast<std::size_t>(d)] * Key(p, kv_head, d);
    weights[static_cast<std::size_t>(p)] = copies * std::exp(s * static_cast<double>(Scale()));
    total += weights[static_cast<std::size_t>(p)];
  }
  double worst = 0.0;
  for (int d = 0; d < case_.head_dim; ++d) {
    double sum = 0.0;
    for (int p = 0; p < kPeriod; ++p) {
      sum += weights[static_cast<std::size_t>(p)] / total * Value(p, kv_head, d);
    }
    const std::size_t i =
        row * static_cast<std::size_t>(case_.head_dim) + static_cast<std::size_t>(d);
    worst = std::max(worst, std::fabs(sum - static_cast<double>(out_[i])));
  }
  return worst;
}

double AttentionSetting::Error() const {
  double worst = 0.0;
  const std::size_t rows = positions_.size() * AttentionCase::kHeads;
  for (std::size_t row = 0; row < rows; row += std::max<std::size_t>(1, rows / 7)) {
    worst = std::max(worst, RowError(row));
  }
  return worst;
}

// Values are below 1 and weights add up to 1. Queries over keys of block types are rounded to about
// 1/250 of a block's largest: a score has an error of some thousandths, and a weight the same
// relative error. Weights of values of block types are rounded to 1/32,512 of their split's
// largest, which here is a few times the others.
double AttentionSetting::Tolerance() const {
  if (cpu::IsKvBlockType(layer_.k_type)) return 5e-3;
  return cpu::IsKvBlockType(layer_.v_type) ? 1e-4 : 2e-5;
}

}  // namespace kvcache::bench
