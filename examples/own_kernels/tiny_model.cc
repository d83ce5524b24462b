#include "tiny_model.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kvcache/causal_cache.h"
#include "kvcache/wrapper_cache.h"

namespace example {
namespace {

using kvcache::Cache;
using kvcache::DType;
using kvcache::Position;
using kvcache::Result;
using kvcache::Status;
using kvcache::TensorView;

// Returns pseudo-random values, the same on every machine.
std::vector<float> RandomMatrix(int rows, int columns, std::uint32_t seed) {
  std::vector<float> values;
  std::uint32_t state = seed * 2654435761u + 1;
  for (int i = 0; i < rows * columns; ++i) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
    values.push_back(1.7f * unit / std::sqrt(static_cast<float>(columns)));
  }
  return values;
}

// Returns y[rows] = W x[columns] for each token of x.
std::vector<float> Multiply(const std::vector<float>& w, const std::vector<float>& x, int columns) {
  const std::size_t rows = w.size() / columns;
  std::vector<float> y;
  for (std::size_t token = 0; token < x.size() / columns; ++token) {
    for (std::size_t row = 0; row < rows; ++row) {
      float sum = 0.0f;
      for (int i = 0; i < columns; ++i) sum += w[row * columns + i] * x[token * columns + i];
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<float> Norm(std::vector<float> x, int width) {
  for (std::size_t first = 0; first < x.size(); first += width) {
    float sum = 0.0f;
    for (int i = 0; i < width; ++i) sum += x[first + i] * x[first + i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + 1e-6f);
    for (int i = 0; i < width; ++i) x[first + i] *= scale;
  }
  return x;
}

std::array<float, TinyModel::kHeadDim / 2> InvFreq() {
  std::array<float, TinyModel::kHeadDim / 2> inv_freq;
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(100.0f, -2.0f * static_cast<float>(i) / TinyModel::kHeadDim);
  }
  return inv_freq;
}

void Rotate(std::vector<float>& x, int heads, const std::vector<Position>& positions) {
  static const auto inv_freq = InvFreq();
  for (std::size_t row = 0; row < x.size() / TinyModel::kHeadDim; ++row) {
    float* head = x.data() + row * TinyModel::kHeadDim;
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      const float angle = static_cast<float>(positions[row / heads]) * inv_freq[i];
      const float a = head[2 * i];
      const float b = head[2 * i + 1];
      head[2 * i] = a * std::cos(angle) - b * std::sin(angle);
      head[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
}

void Add(std::vector<float>& x, const std::vector<float>& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

TinyModel::TinyModel() : embedding_(RandomMatrix(kVocabulary, kWidth, 1)) {
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    const std::uint32_t seed = 10 * (i + 1);
    layers_.push_back({.q = RandomMatrix(kWidth, kWidth, seed),
                       .k = RandomMatrix(kKvHeads * kHeadDim, kWidth, seed + 1),
                       .v = RandomMatrix(kKvHeads * kHeadDim, kWidth, seed + 2),
                       .o = RandomMatrix(kWidth, kWidth, seed + 3),
                       .up = RandomMatrix(2 * kWidth, kWidth, seed + 4),
                       .down = RandomMatrix(kWidth, 2 * kWidth, seed + 5)});
  }
}

std::unique_ptr<Cache> TinyModel::MakeCache() {
  static const auto inv_freq = InvFreq();
  const kvcache::ShiftKeysFn shift = [this](int, const kvcache::LayerKv& layer,
                                            std::span<const kvcache::CellRun> cells,
                                            Position offset) {
    return backend_.ShiftKeys(layer, cells, offset, {.dims = kHeadDim, .inv_freq = inv_freq});
  };
  kvcache::WrapperOptions options;
  options.caches.push_back(kvcache::MakeCausalCache({.shift_keys = shift, .window = kWindow}));
  options.caches.push_back(kvcache::MakeCausalCache({.shift_keys = shift}));
  options.cache_of_layer = {0, 0, 1};
  return kvcache::MakeWrapperCache(std::move(options));
}

Status TinyModel::Attention(const Layer& layer, Cache& cache,
                            const std::vector<Position>& positions, std::vector<float>& x) {
  const std::vector<float> h = Norm(x, kWidth);
  std::vector<float> q = Multiply(layer.q, h, kWidth);
  std::vector<float> k = Multiply(layer.k, h, kWidth);
  std::vector<float> v = Multiply(layer.v, h, kWidth);
  Rotate(q, kHeads, positions);
  Rotate(k, kKvHeads, positions);
  const auto view = [&](std::vector<float>& values, int heads) {
    return TensorView::Dense(values.data(), DType::kF32, kHeadDim, heads,
                             static_cast<std::int64_t>(positions.size()));
  };
  KVCACHE_RETURN_IF_ERROR(cache.Put(view(k, kKvHeads), view(v, kKvHeads)));
  KVCACHE_ASSIGN_OR_RETURN(const kvcache::DenseKv history, cache.Get());
  std::vector<float> out(q.size());
  Attend(view(q, kHeads), history, 1.0f / std::sqrt(float{kHeadDim}), view(out, kHeads));
  Add(x, Multiply(layer.o, out, kWidth));
  return Status::Ok();
}

void TinyModel::FeedForward(const Layer& layer, std::vector<float>& x) const {
  std::vector<float> h = Multiply(layer.up, Norm(x, kWidth), kWidth);
  for (float& value : h) value = value / (1.0f + std::exp(-value));
  Add(x, Multiply(layer.down, h, 2 * kWidth));
}

Result<std::vector<float>> TinyModel::Forward(Cache& cache, kvcache::SequenceId sequence,
                                              Position position, std::string_view text) {
  std::vector<Position> positions(text.size());
  std::iota(positions.begin(), positions.end(), position);
  const std::vector<kvcache::SequenceId> sequences(text.size(), sequence);
  KVCACHE_RETURN_IF_ERROR(cache.StartForward({.positions = positions, .sequences = sequences},
                                             kvcache::ForwardMode::kCompute));
  std::vector<float> x;
  for (const char token : text) {
    const float* row = embedding_.data() + (token & 127) * kWidth;
    x.insert(x.end(), row, row + kWidth);
  }
  for (int i = 0; i < kLayers; ++i) {
    cache.SetLayer(i);
    KVCACHE_RETURN_IF_ERROR(Attention(layers_[i], cache, positions, x));
    FeedForward(layers_[i], x);
  }
  const std::vector<float> last = Norm({x.end() - kWidth, x.end()}, kWidth);
  return Multiply(embedding_, last, kWidth);
}

}  // namespace example
