#include "backend/cpu/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/linear_float.h"
#include "backend/cpu/linear_q8.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cpu {
namespace {

// Activations of so many values are worth more than one thread.
constexpr std::int64_t kMinSharedValues = 16'384;

class CpuWeight : public LinearWeight {
 public:
  CpuWeight(std::int64_t inputs, std::int64_t outputs, DType dtype)
      : inputs_(inputs), outputs_(outputs), dtype_(dtype) {}
  std::int64_t inputs() const final { return inputs_; }
  std::int64_t outputs() const final { return outputs_; }
  DType dtype() const final { return dtype_; }

 private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  DType dtype_;
};

class FloatWeight final : public CpuWeight {
 public:
  explicit FloatWeight(const flt::Weights& w) : CpuWeight(w.inputs, w.outputs, w.dtype), w_(w) {}
  std::size_t owned_bytes() const override { return 0; }
  const flt::Weights& weights() const { return w_; }

 private:
  flt::Weights w_;
};

class Q8Weight final : public CpuWeight {
 public:
  Q8Weight(std::int64_t inputs, std::int64_t outputs, AlignedBuffer panels)
      : CpuWeight(inputs, outputs, DType::kQ8_0), panels_(std::move(panels)) {}
  std::size_t owned_bytes() const override { return panels_.size_bytes(); }
  const std::byte* panels() const { return panels_.data(); }

 private:
  AlignedBuffer panels_;
};

std::string Size(std::int64_t a, std::int64_t b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "linear: " + std::move(message));
}

bool IsDenseMatrix(const TensorView& view) {
  return view.dims[2] == 1 && view.dims[3] == 1 &&
         view.stride_bytes[0] == InfoOf(view.dtype).block_bytes &&
         (view.dims[1] == 1 || view.stride_bytes[1] == BytesOf(view.dtype, view.dims[0]));
}

Status CheckWeight(const TensorView& w) {
  const std::string what = std::string(InfoOf(w.dtype).name) + " " + Size(w.dims[0], w.dims[1]);
  if (w.dims[0] < 1 || w.dims[1] < 1 || !IsDenseMatrix(w)) {
    return Invalid("weight " + what + " is not a dense matrix");
  }
  if (w.dims[0] % InfoOf(w.dtype).block_size != 0) {
    return Invalid("weight " + what + ": inputs are not a multiple of its block of " +
                   std::to_string(InfoOf(w.dtype).block_size));
  }
  return Status::Ok();
}

Result<std::unique_ptr<LinearWeight>> PackQ8(ThreadPool& pool, const TensorView& w) {
  const std::int64_t inputs = w.dims[0];
  const std::int64_t outputs = w.dims[1];
  const std::int64_t panels = q8::Panels(outputs);
  const std::int64_t panel_bytes = q8::PanelBytes(inputs);
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                           AlignedBuffer::Make(static_cast<std::size_t>(panels * panel_bytes)));
  const std::int64_t row_bytes = BytesOf(DType::kQ8_0, inputs);
  pool.ParallelFor(panels, [&](std::int64_t panel, int) {
    const std::int64_t row = panel * q8::kPanelRows;
    q8::PackPanel(w.data + row * row_bytes, std::min(q8::kPanelRows, outputs - row), inputs,
                  buffer.data() + panel * panel_bytes);
  });
  return std::unique_ptr<LinearWeight>(
      std::make_unique<Q8Weight>(inputs, outputs, std::move(buffer)));
}

// ---- One call

Status CheckCall(const TensorView& x, std::span<const LinearOutput> outputs) {
  if (x.dtype != DType::kF32 || !IsDenseMatrix(x)) {
    return Invalid("x " + Size(x.dims[0], x.dims[1]) + " is not a dense f32 matrix");
  }
  for (const LinearOutput& output : outputs) {
    const auto* const weight = dynamic_cast<const CpuWeight*>(output.weight);
    if (weight == nullptr) return Invalid("a weight is not of this backend's MakeLinear");
    const std::string sizes = "weight " + Size(weight->inputs(), weight->outputs()) + ", x " +
                              Size(x.dims[0], x.dims[1]) + ", y " +
                              Size(output.y.dims[0], output.y.dims[1]);
    if (weight->inputs() != x.dims[0]) return Invalid("inputs of weight and x differ: " + sizes);
    if (weight->outputs() != output.y.dims[0]) {
      return Invalid("outputs of weight and y differ: " + sizes);
    }
    if (output.y.dims[1] != x.dims[1]) return Invalid("batches of x and y differ: " + sizes);
    if (output.y.dtype != DType::kF32 || !IsDenseMatrix(output.y)) {
      return Invalid("y is not a dense f32 matrix: " + sizes);
    }
  }
  return Status::Ok();
}

// The call's inputs in the forms that its kernels read, cut from one piece of scratch.
class Call {
 public:
  Call(ThreadPool& pool, const TensorView& x, std::span<const LinearOutput> outputs)
      : pool_(pool),
        x_(x.as<const float>()),
        inputs_(x.dims[0]),
        tokens_(x.dims[1]),
        outputs_(outputs) {
    for (const LinearOutput& output : outputs) {
      (output.weight->dtype() == DType::kQ8_0 ? any_q8_ : any_float_) = true;
      weight_bytes_ += BytesOf(output.weight->dtype(), inputs_ * output.weight->outputs());
    }
  }

  Status Prepare(Scratch& scratch);
  void Run();

 private:
  bool UsesPanels() const { return any_float_ && tokens_ >= flt::kMinPanelTokens; }
  void QuantiseX();
  void PackX();
  std::int64_t RowsPerTask(const LinearWeight& weight) const;
  std::int64_t Tasks(const LinearWeight& weight) const;
  void RunTask(const LinearOutput& output, std::int64_t task, int thread) const;
  void RunPanelTask(const LinearOutput& output, const flt::Weights& w, std::int64_t task,
                    int thread) const;

  ThreadPool& pool_;
  const float* x_;
  std::int64_t inputs_;
  std::int64_t tokens_;
  std::span<const LinearOutput> outputs_;
  bool any_q8_ = false;
  bool any_float_ = false;
  std::int64_t weight_bytes_ = 0;
  q8::QuantisedX quantised_;
  float* packed_ = nullptr;
  std::int64_t packed_tiles_ = 0;
  std::int64_t tile_splits_ = 1;  // parts into which each panel's tiles are cut
  float* panel_room_ = nullptr;   // [threads][panel_floats_]
  std::int64_t panel_floats_ = 0;
};

std::int64_t AlignedBytes(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

Status Call::Prepare(Scratch& scratch) {
  const std::int64_t blocks = any_q8_ ? tokens_ * (inputs_ / q8::kBlock) : 0;
  const std::int64_t value_bytes =
      AlignedBytes(any_q8_ ? tokens_ * inputs_ * q8::QuantisedX::kMaxValueBytes : 0);
  const std::int64_t block_bytes = AlignedBytes(blocks * 4);
  const bool panels = UsesPanels();
  const std::int64_t packed_bytes =
      panels ? AlignedBytes(flt::PackedFloats(inputs_, tokens_) * 4) : 0;
  panel_floats_ = panels ? AlignedBytes(flt::PanelFloats(inputs_) * 4) / 4 : 0;
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte* const base,
      scratch.Reserve(static_cast<std::size_t>(value_bytes + 2 * block_bytes + packed_bytes +
                                               pool_.threads() * panel_floats_ * 4)));
  quantised_ = q8::QuantisedX{
      .values = base,
      .scales = reinterpret_cast<float*>(base + value_bytes),
      .corrections = reinterpret_cast<std::int32_t*>(base + value_bytes + block_bytes),
      .inputs = inputs_,
      .tokens = tokens_};
  packed_ = reinterpret_cast<float*>(base + value_bytes + 2 * block_bytes);
  panel_room_ = reinterpret_cast<float*>(base + value_bytes + 2 * block_bytes + packed_bytes);
  if (any_q8_) QuantiseX();
  if (panels) PackX();
  return Status::Ok();
}

void Call::QuantiseX() {
  if (tokens_ * inputs_ < kMinSharedValues) {
    for (std::int64_t t = 0; t < tokens_; ++t) q8::QuantiseToken(x_ + t * inputs_, t, quantised_);
    return;
  }
  pool_.ParallelFor(
      tokens_, [&](std::int64_t t, int) { q8::QuantiseToken(x_ + t * inputs_, t, quantised_); });
}

void Call::PackX() {
  packed_tiles_ = flt::PackedTiles(tokens_);
  pool_.ParallelFor(packed_tiles_, [&](std::int64_t tile, int) {
    flt::PackTile(x_, inputs_, tokens_, tile, packed_);
  });
  // Narrow outputs on many threads: several threads take the same panel, for different tokens.
  std::int64_t panels = 0;
  for (const LinearOutput& output : outputs_) {
    if (output.weight->dtype() == DType::kQ8_0) continue;
    panels += (output.weight->outputs() + flt::PanelRows(inputs_) - 1) / flt::PanelRows(inputs_);
  }
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t wanted = (kTasksPerThread * pool_.threads() + panels - 1) / panels;
  tile_splits_ = std::clamp<std::int64_t>(wanted, 1, packed_tiles_);
}

// Rows of a decode task: enough bytes to make starting it cheap, few enough for an even finish.
std::int64_t Call::RowsPerTask(const LinearWeight& weight) const {
  constexpr std::int64_t kTasksPerThread = 16;
  constexpr std::int64_t kMinBytes = 32 << 10;
  constexpr std::int64_t kMaxBytes = 512 << 10;
  const std::int64_t row_bytes = BytesOf(weight.dtype(), inputs_);
  const std::int64_t task_bytes =
      std::clamp(weight_bytes_ / (kTasksPerThread * pool_.threads()), kMinBytes, kMaxBytes);
  constexpr std::int64_t kStep = 2 * q8::kPanelRows;
  return std::max<std::int64_t>(1, task_bytes / row_bytes / kStep) * kStep;
}

std::int64_t Call::Tasks(const LinearWeight& weight) const {
  if (weight.dtype() != DType::kQ8_0 && UsesPanels()) {
    return (weight.outputs() + flt::PanelRows(inputs_) - 1) / flt::PanelRows(inputs_) *
           tile_splits_;
  }
  const std::int64_t rows = RowsPerTask(weight);
  return (weight.outputs() + rows - 1) / rows;
}

void Call::RunPanelTask(const LinearOutput& output, const flt::Weights& w, std::int64_t task,
                        int thread) const {
  const std::int64_t part = task % tile_splits_;
  const flt::PanelProduct product{
      .w = w, .packed = packed_, .tokens = tokens_, .y = output.y.as<float>()};
  flt::MultiplyPanel(product, task / tile_splits_, part * packed_tiles_ / tile_splits_,
                     (part + 1) * packed_tiles_ / tile_splits_,
                     panel_room_ + thread * panel_floats_);
}

void Call::RunTask(const LinearOutput& output, std::int64_t task, int thread) const {
  const std::int64_t rows = RowsPerTask(*output.weight);
  const std::int64_t begin = task * rows;
  const std::int64_t end = std::min(begin + rows, output.weight->outputs());
  float* const y = output.y.as<float>();
  if (output.weight->dtype() == DType::kQ8_0) {
    const auto& weight = static_cast<const Q8Weight&>(*output.weight);
    const q8::Product product{
        .panels = weight.panels(), .outputs = weight.outputs(), .x = quantised_, .y = y};
    q8::MultiplyPanels(product, begin / q8::kPanelRows, q8::Panels(end));
    return;
  }
  const flt::Weights& w = static_cast<const FloatWeight&>(*output.weight).weights();
  if (UsesPanels()) return RunPanelTask(output, w, task, thread);
  flt::MultiplyRows(w, x_, tokens_, y, begin, end);
}

void Call::Run() {
  std::int64_t all = 0;
  for (const LinearOutput& output : outputs_) all += Tasks(*output.weight);
  pool_.ParallelFor(all, [&](std::int64_t task, int thread) {
    for (const LinearOutput& output : outputs_) {
      const std::int64_t tasks = Tasks(*output.weight);
      if (task < tasks) return RunTask(output, task, thread);
      task -= tasks;
    }
  });
}

}  // namespace

Result<std::unique_ptr<LinearWeight>> MakeLinear(ThreadPool& pool, const TensorView& w) {
  switch (w.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      KVCACHE_RETURN_IF_ERROR(CheckWeight(w));
      return std::unique_ptr<LinearWeight>(std::make_unique<FloatWeight>(flt::Weights{
          .rows = w.data, .dtype = w.dtype, .inputs = w.dims[0], .outputs = w.dims[1]}));
    case DType::kQ8_0: KVCACHE_RETURN_IF_ERROR(CheckWeight(w)); return PackQ8(pool, w);
    default:
      return Status(StatusCode::kUnsupported,
                    "linear: no kernels for " + std::string(InfoOf(w.dtype).name) + " weights");
  }
}

Status Linear(ThreadPool& pool, Scratch& scratch, const TensorView& x,
              std::span<const LinearOutput> outputs) {
  KVCACHE_RETURN_IF_ERROR(CheckCall(x, outputs));
  if (x.dims[1] == 0 || outputs.empty()) return Status::Ok();
  Call call(pool, x, outputs);
  KVCACHE_RETURN_IF_ERROR(call.Prepare(scratch));
  call.Run();
  return Status::Ok();
}

}  // namespace kvcache::cpu
