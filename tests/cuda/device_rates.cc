// Prints what the CUDA backend reaches on the first device: a table of calls, times and rates. tools/gpu/check runs it.
//
//   cuda_device_rates > rates.md
//
// Times are those of many calls in a row, the host's part included; the weights and cells of a row are larger than the
// device's caches.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cuda_backend.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void Check(const Status& status) {
  if (!status.ok()) Die(status);
}
template <class T>
T Value(Result<T> result) {
  if (!result.ok()) Die(result.status());
  return std::move(result).value();
}

class Rates {
 public:
  explicit Rates(Backend& backend) : backend_(backend), sync_(Take(64)) {}

  std::byte* Take(std::int64_t bytes) {
    buffers_.push_back(Value(backend_.Allocate(static_cast<std::size_t>(bytes))));
    return buffers_.back()->data();
  }
  // Random values in [-1, 1) on the device.
  TensorView Floats(std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1) {
    std::vector<float> values(static_cast<std::size_t>(d0 * d1 * d2));
    for (float& value : values) {
      random_ = random_ * 1664525u + 1013904223u;
      value = static_cast<float>(random_ >> 8) * 0x1p-23f - 1.0f;
    }
    const TensorView view = TensorView::Dense(Take(d0 * d1 * d2 * 4), DType::kF32, d0, d1, d2);
    Check(backend_.CopyFromHost(std::as_bytes(std::span(values)), view));
    return view;
  }
  void Free() { buffers_.resize(1); }

  // Prints the time of call(i), i = 0, 1, …, and `amount` per second.
  void Row(const std::string& name, double amount, const char* unit,
           const std::function<void(int)>& call) {
    int calls = 4;
    for (;; calls *= 2) {
      for (int i = 0; i < 2; ++i) call(i);
      Synchronize();
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < calls; ++i) call(i);
      Synchronize();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (seconds < 0.1 && calls < 100000) continue;
      std::printf("| %s | %.1f | %.2f %s |\n", name.c_str(), seconds / calls * 1e6,
                  amount * calls / seconds, unit);
      std::fflush(stdout);
      return;
    }
  }
  Backend& backend() { return backend_; }

 private:
  void Synchronize() {
    float value = 0.0f;
    Check(backend_.CopyToHost(TensorView::Dense(sync_, DType::kF32, 1),
                              std::as_writable_bytes(std::span(&value, 1))));
  }

  Backend& backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::uint32_t random_ = 1;
  std::byte* sync_;
};

std::string Name(DType type) {
  return std::string(InfoOf(type).name);
}

void Copies(Rates& rates) {
  constexpr std::int64_t kValues = std::int64_t{1} << 28;  // 1 GiB
  const TensorView from = TensorView::Dense(rates.Take(kValues * 4), DType::kF32, kValues);
  const TensorView to = TensorView::Dense(rates.Take(kValues * 4), DType::kF32, kValues);
  rates.Row("copy on the device, 1 GiB", 2.0 * kValues * 4 / 1e9, "GB/s",
            [&](int) { Check(rates.backend().CopyValues(from, to)); });
  constexpr std::int64_t kPart = std::int64_t{1} << 24;
  const TensorView part = TensorView::Dense(from.data, DType::kF32, kPart);
  std::vector<float> host(kPart);
  rates.Row("copy to the device, 64 MiB", kPart * 4 / 1e9, "GB/s", [&](int) {
    Check(rates.backend().CopyFromHost(std::as_bytes(std::span(host)), part));
  });
  rates.Row("copy from the device, 64 MiB", kPart * 4 / 1e9, "GB/s", [&](int) {
    Check(rates.backend().CopyToHost(part, std::as_writable_bytes(std::span(host))));
  });
  const TensorView small = TensorView::Dense(from.data, DType::kF32, 1024);
  rates.Row("smallest kernel (scale of 1,024 values)", 1e-6, "M/s",
            [&](int) { Check(rates.backend().Scale(small, 1.0f)); });
  rates.Free();
}

// `matrices` matrices of [inputs, outputs], of which few rows differ.
std::unique_ptr<LinearWeight> Weights(Rates& rates, DType type, std::int64_t inputs,
                                      std::int64_t outputs, std::int64_t matrices) {
  const std::int64_t row_bytes = BytesOf(type, inputs);
  constexpr std::int64_t kRows = 64;  // that are repeated
  std::vector<float> values(static_cast<std::size_t>(inputs * kRows));
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (float& value : values) value = normal(random);
  std::vector<std::byte> rows(static_cast<std::size_t>(row_bytes * kRows));
  Check(Quantize(type, values, rows));
  std::vector<std::byte> all;
  for (std::int64_t r = 0; r < matrices * outputs; r += kRows) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return Value(
      rates.backend().MakeLinear(TensorView::Dense(all.data(), type, inputs, outputs, matrices)));
}

// Products of one of `matrices` matrices, in turn.
void Products(Rates& rates, DType type, std::int64_t outputs, std::int64_t inputs, int matrices,
              std::span<const std::int64_t> batches) {
  const auto weight = Weights(rates, type, inputs, outputs, matrices);
  for (const std::int64_t columns : batches) {
    const TensorView x = rates.Floats(inputs, columns);
    const TensorView y =
        TensorView::Dense(rates.Take(outputs * columns * 4), DType::kF32, outputs, columns);
    const auto call = [&](int i) {
      const LinearOutput output{weight.get(), y, i % matrices};
      Check(rates.backend().Linear(x, {&output, 1}));
    };
    const std::string name = Name(type) + ", " + std::to_string(outputs) + " x " +
                             std::to_string(inputs) + ", " + std::to_string(columns) + " columns";
    const auto values = static_cast<double>(inputs * outputs);
    if (columns <= 8) {
      rates.Row(name, static_cast<double>(BytesOf(type, inputs) * outputs) / 1e9, "GB/s", call);
    } else {
      rates.Row(name, 2.0 * values * static_cast<double>(columns) / 1e12, "TOP/s", call);
    }
  }
  rates.Free();
}

// All products of a layer of a model of 8B parameters, in their order.
void Layer(Rates& rates, DType type) {
  constexpr std::int64_t kWidth = 4096;
  constexpr std::int64_t kKeys = 1024;
  constexpr std::int64_t kInner = 14336;
  constexpr int kLayers = 2;
  struct Product {
    std::int64_t inputs;
    std::vector<std::int64_t> outputs;
  };
  const Product products[] = {{kWidth, {kWidth, kKeys, kKeys}},
                              {kWidth, {kWidth}},
                              {kWidth, {kInner, kInner}},
                              {kInner, {kWidth}}};
  std::vector<std::unique_ptr<LinearWeight>> weights;
  double values = 0.0;
  double bytes = 0.0;
  for (const Product& product : products) {
    for (const std::int64_t outputs : product.outputs) {
      weights.push_back(Weights(rates, type, product.inputs, outputs, kLayers));
      values += static_cast<double>(product.inputs * outputs);
      bytes += static_cast<double>(BytesOf(type, product.inputs) * outputs);
    }
  }
  struct Call {
    TensorView x;
    std::vector<LinearOutput> outputs;
  };
  for (const std::int64_t columns : {1, 2, 8, 512}) {
    std::vector<Call> calls;
    std::size_t next = 0;
    for (const Product& product : products) {
      Call& call = calls.emplace_back();
      call.x = rates.Floats(product.inputs, columns);
      for (const std::int64_t outputs : product.outputs) {
        std::byte* const y = rates.Take(outputs * columns * 4);
        call.outputs.push_back(
            {weights[next++].get(), TensorView::Dense(y, DType::kF32, outputs, columns), 0});
      }
    }
    const auto run = [&](int i) {
      for (Call& call : calls) {
        for (LinearOutput& output : call.outputs) output.matrix = i % kLayers;
        Check(rates.backend().Linear(call.x, call.outputs));
      }
    };
    const std::string name =
        Name(type) + ", a layer of 8B, " + std::to_string(columns) + " columns";
    if (columns <= 8) {
      rates.Row(name, bytes / 1e9, "GB/s", run);
    } else {
      rates.Row(name, 2.0 * values * static_cast<double>(columns) / 1e12, "TOP/s", run);
    }
  }
  rates.Free();
}

void AllProducts(Rates& rates, DType type) {
  constexpr std::int64_t kBatches[] = {1, 2, 4, 8, 16, 32, 64, 512};
  constexpr std::int64_t kSome[] = {1, 512};
  if (type == DType::kF16) {
    constexpr std::int64_t kFew[] = {1, 8, 512};
    Products(rates, type, 14336, 4096, 4, kFew);
    return;
  }
  Products(rates, type, 14336, 4096, 4, kBatches);
  Products(rates, type, 4096, 14336, 2, kSome);
  Products(rates, type, 4096, 4096, 8, kSome);
  Products(rates, type, 1024, 4096, 32, kSome);
  Layer(rates, type);
}

constexpr int kDim = 128;  // values of a head in attention

// A layer whose cells hold random keys and values. REQUIRES: a multiple of 512 cells.
LayerKv FilledLayer(Rates& rates, DType type, int kv_heads, std::int64_t cells) {
  LayerKv layer;
  layer.shape = {kv_heads, kDim, kDim};
  layer.k_type = layer.v_type = type;
  layer.layout = KvLayout::kTiled;
  layer.cells = cells;
  layer.k = rates.Take(layer.KBytes());
  layer.v = rates.Take(layer.VBytes());
  const TensorView rows = rates.Floats(kDim, kv_heads, 512);
  for (std::int32_t cell = 0; cell < layer.cells; cell += 512) {
    const CellRun run{cell, 512};
    Check(rates.backend().StoreKv(layer, rows, rows, {&run, 1}));
  }
  return layer;
}

// Sequences of `length` tokens each; 32 heads over 8 heads of keys with 128 values.
void Decode(Rates& rates, DType type, int sequences, int length) {
  constexpr int kHeads = 32;
  constexpr int kKvHeads = 8;
  const LayerKv layer = FilledLayer(rates, type, kKvHeads, std::int64_t{sequences} * length);
  const TensorView rows = rates.Floats(kDim, kKvHeads, 1024);
  const TensorView q = rates.Floats(kDim, kHeads, sequences);
  const TensorView out = rates.Floats(kDim, kHeads, sequences);
  std::vector<HistoryRun> runs;
  std::vector<std::span<const HistoryRun>> histories;
  std::vector<Position> positions;
  std::vector<std::int32_t> history_of_query;
  for (int s = 0; s < sequences; ++s) runs.push_back({0, s * length, length});
  for (int s = 0; s < sequences; ++s) {
    histories.emplace_back(&runs[static_cast<std::size_t>(s)], 1);
    positions.push_back(length - 1);
    history_of_query.push_back(s);
  }
  const Visibility visibility{
      .positions = positions, .history_of_query = history_of_query, .histories = histories};
  AttentionOptions options;
  options.scale = 0.088f;
  rates.Row("attention over " + Name(type) + ", " + std::to_string(sequences) + " x " +
                std::to_string(length) + " tokens",
            static_cast<double>(layer.KBytes() + layer.VBytes()) / 1e9, "GB/s",
            [&](int) { Check(rates.backend().Attention(layer, q, visibility, options, out)); });
  rates.Row("store of " + std::to_string(sequences) + " tokens, " + Name(type), 1e-6 * sequences,
            "M tokens/s", [&](int) {
              std::vector<CellRun> cells;
              for (int s = 0; s < sequences; ++s) cells.push_back({s * length, 1});
              TensorView k = rows;
              k.dims[2] = sequences;
              Check(rates.backend().StoreKv(layer, k, k, cells));
            });
  if (sequences == 1) {
    LayerKv host = layer;
    std::vector<std::byte> k(static_cast<std::size_t>(layer.KBytes()));
    std::vector<std::byte> v(static_cast<std::size_t>(layer.VBytes()));
    host.on_host = true;
    host.k = k.data();
    host.v = v.data();
    const CellMove all{0, 0, length};
    const double gigabytes = static_cast<double>(k.size() + v.size()) / 1e9;
    rates.Row("cells to the host, " + Name(type), gigabytes, "GB/s", [&](int) {
      Check(rates.backend().TransferCells(layer, host, {&all, 1}));
    });
    rates.Row("cells from the host, " + Name(type), gigabytes, "GB/s", [&](int) {
      Check(rates.backend().TransferCells(host, layer, {&all, 1}));
    });
  }
  rates.Free();
}

// One sequence of `length` tokens, the last `tokens` of which are queries, with 32 heads over some heads of keys.
void OneSequence(Rates& rates, DType type, int kv_heads, int length, int tokens) {
  constexpr int kHeads = 32;
  const LayerKv layer = FilledLayer(rates, type, kv_heads, length);
  const TensorView q = rates.Floats(kDim, kHeads, tokens);
  const TensorView out = rates.Floats(kDim, kHeads, tokens);
  const HistoryRun run{0, 0, length};
  const std::span<const HistoryRun> history(&run, 1);
  std::vector<Position> positions;
  double seen = 0.0;
  for (int i = 0; i < tokens; ++i) {
    positions.push_back(length - tokens + i);
    seen += positions.back() + 1;
  }
  const std::vector<std::int32_t> history_of_query(static_cast<std::size_t>(tokens), 0);
  const Visibility visibility{
      .positions = positions, .history_of_query = history_of_query, .histories = {&history, 1}};
  AttentionOptions options;
  options.scale = 0.088f;
  const std::string name = "attention over " + Name(type) + ", 32 heads over " +
                           std::to_string(kv_heads) + ", " + std::to_string(tokens) +
                           " queries at the end of " + std::to_string(length) + " tokens";
  const auto call = [&](int) {
    Check(rates.backend().Attention(layer, q, visibility, options, out));
  };
  if (tokens < 32) {
    rates.Row(name, static_cast<double>(layer.KBytes() + layer.VBytes()) / 1e9, "GB/s", call);
  } else {
    rates.Row(name, seen * kHeads * 2 * 2 * kDim / 1e12, "TOP/s", call);
  }
  rates.Free();
}

int Main() {
  const std::vector<CudaDeviceInfo> devices = Value(CudaDevices());
  const std::unique_ptr<Backend> backend = Value(MakeCudaBackend());
  std::printf("# Rates on %s\n\nCompute capability %d.%d, %.1f GB.\n\n", devices[0].name.c_str(),
              devices[0].capability_major, devices[0].capability_minor,
              static_cast<double>(devices[0].memory_bytes) / 1e9);
  std::printf("| call | µs | rate |\n|---|---|---|\n");
  Rates rates(*backend);
  Copies(rates);
  for (const DType type : {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kF16}) {
    AllProducts(rates, type);
  }
  for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
    for (const auto& [sequences, length] :
         {std::pair{1, 4096}, {1, 32768}, {16, 4096}, {16, 32768}}) {
      Decode(rates, type, sequences, length);
    }
    OneSequence(rates, type, 4, 32768, 1);
    OneSequence(rates, type, 8, 32768, 2);
    OneSequence(rates, type, 8, 32768, 4);
    for (const int length : {512, 2560, 16896}) OneSequence(rates, type, 8, length, 512);
  }
  return 0;
}

}  // namespace
}  // namespace kvcache

int main() {
  return kvcache::Main();
}
