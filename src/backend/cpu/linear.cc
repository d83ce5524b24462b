#include "backend/cpu/linear.h"

#include <algorithm>
#include <new>
#include <string>
#include <type_traits>
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
  explicit CpuWeight(const TensorView& w)
      : inputs_(w.dims[0]), outputs_(w.dims[1]), matrices_(w.dims[2]), dtype_(w.dtype) {}
  std::int64_t inputs() const final { return inputs_; }
  std::int64_t outputs() const final { return outputs_; }
  std::int64_t matrices() const final { return matrices_; }
  DType dtype() const final { return dtype_; }

 private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::int64_t matrices_;
  DType dtype_;
};

class FloatWeight final : public CpuWeight {
 public:
  explicit FloatWeight(const TensorView& w) : CpuWeight(w), rows_(w.data) {}
  std::size_t owned_bytes() const override { return 0; }
  flt::Weights weights(std::int64_t matrix) const {
    const std::int64_t offset = matrix * outputs() * BytesOf(dtype(), inputs());
    return {.rows = rows_ + offset, .dtype = dtype(), .inputs = inputs(), .outputs = outputs()};
  }

 private:
  const std::byte* rows_;
};

class Q8Weight final : public CpuWeight {
 public:
  Q8Weight(const TensorView& w, AlignedBuffer panels) : CpuWeight(w), panels_(std::move(panels)) {}
  std::size_t owned_bytes() const override { return panels_.size_bytes(); }
  const std::byte* panels(std::int64_t matrix) const {
    return panels_.data() + matrix * q8::Panels(outputs()) * q8::PanelBytes(inputs());
  }

 private:
  AlignedBuffer panels_;
};

std::string Size(std::int64_t a, std::int64_t b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "linear: " + std::move(message));
}

// One matrix, or a stack of them.
bool IsDenseStack(const TensorView& view) {
  const std::int64_t row_bytes = BytesOf(view.dtype, view.dims[0]);
  return view.dims[3] == 1 && view.stride_bytes[0] == InfoOf(view.dtype).block_bytes &&
         (view.dims[1] == 1 || view.stride_bytes[1] == row_bytes) &&
         (view.dims[2] == 1 || view.stride_bytes[2] == row_bytes * view.dims[1]);
}

bool IsDenseMatrix(const TensorView& view) {
  return view.dims[2] == 1 && IsDenseStack(view);
}

Status CheckWeight(const TensorView& w) {
  const std::string what = std::string(InfoOf(w.dtype).name) + " " + Size(w.dims[0], w.dims[1]);
  if (w.dims[0] < 1 || w.dims[1] < 1 || w.dims[2] < 1 || !IsDenseStack(w)) {
    return Invalid("weight " + what + " is not a dense matrix or a stack of them");
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
  const std::int64_t all_panels = panels * w.dims[2];
  const std::int64_t panel_bytes = q8::PanelBytes(inputs);
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                           AlignedBuffer::Make(static_cast<std::size_t>(all_panels * panel_bytes)));
  const std::int64_t row_bytes = BytesOf(DType::kQ8_0, inputs);
  pool.ParallelFor(all_panels, [&](std::int64_t panel, int) {
    const std::int64_t row = panel % panels * q8::kPanelRows;
    const std::int64_t first = panel / panels * outputs + row;
    q8::PackPanel(w.data + first * row_bytes, std::min(q8::kPanelRows, outputs - row), inputs,
                  buffer.data() + panel * panel_bytes);
  });
  return std::unique_ptr<LinearWeight>(std::make_unique<Q8Weight>(w, std::move(buffer)));
}

// ---- One call

Status CheckOutput(const TensorView& x, const LinearOutput& output) {
  const auto* const weight = dynamic_cast<const CpuWeight*>(output.weight);
  if (weight == nullptr) return Invalid("a weight is not of this backend's MakeLinear");
  // Made for an error alone: a text is an allocation.
  const auto invalid = [&](const std::string& what) {
    return Invalid(what + ": weight " + Size(weight->inputs(), weight->outputs()) + ", x " +
                   Size(x.dims[0], x.dims[1]) + ", y " + Size(output.y.dims[0], output.y.dims[1]));
  };
  if (weight->inputs() != x.dims[0]) return invalid("inputs of weight and x differ");
  if (weight->outputs() != output.y.dims[0]) return invalid("outputs of weight and y differ");
  if (output.y.dims[1] != x.dims[1]) return invalid("batches of x and y differ");
  if (output.y.dtype != DType::kF32 || !IsDenseMatrix(output.y)) {
    return invalid("y is not a dense f32 matrix");
  }
  if (output.matrix < 0 || output.matrix >= weight->matrices()) {
    return invalid("matrix " + std::to_string(output.matrix) + " of a stack of " +
                   std::to_string(weight->matrices()));
  }
  return Status::Ok();
}

Status CheckGroup(const LinearGroup& group) {
  const TensorView& x = group.x;
  if (x.dtype != DType::kF32 || !IsDenseMatrix(x)) {
    return Invalid("x " + Size(x.dims[0], x.dims[1]) + " is not a dense f32 matrix");
  }
  for (const LinearOutput& output : group.outputs) {
    KVCACHE_RETURN_IF_ERROR(CheckOutput(x, output));
  }
  return Status::Ok();
}

std::int64_t AlignedBytes(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// What the groups of a call share, summed up over all of them before any work is cut.
struct Totals {
  int threads = 1;
  std::int64_t weight_bytes = 0;
  std::int64_t panels = 0;        // of float weights that are multiplied by panels
  std::int64_t panel_floats = 0;  // room that a thread works in
  float* panel_room = nullptr;    // [threads][panel_floats]
};

// A group's inputs in the forms that its kernels read, cut from one piece of scratch, and its
// work as tasks. Lies in scratch itself: REQUIRES a trivial destructor.
class Group {
 public:
  explicit Group(const LinearGroup& group)
      : x_(group.x.as<const float>()),
        inputs_(group.x.dims[0]),
        tokens_(group.x.dims[1]),
        outputs_(group.outputs) {
    for (const LinearOutput& output : outputs_) {
      (output.weight->dtype() == DType::kQ8_0 ? any_q8_ : any_float_) = true;
    }
  }

  void AddTo(Totals& totals) const;
  std::int64_t ScratchBytes() const;
  // Takes ScratchBytes() from `base`; its tasks are numbered from these on.
  void Bind(std::byte* base, const Totals& totals, std::int64_t first_prepare_task,
            std::int64_t first_task);

  std::int64_t prepare_end() const { return first_prepare_task_ + PrepareTasks(); }
  std::int64_t end() const { return first_task_ + tasks_; }
  std::int64_t values() const { return inputs_ * tokens_; }
  void Prepare(std::int64_t task) const;
  void Run(const Totals& totals, std::int64_t task, int thread) const;

 private:
  bool UsesPanels() const { return any_float_ && tokens_ >= flt::kMinPanelTokens; }
  std::int64_t ValueBytes() const {
    return AlignedBytes(any_q8_ ? tokens_ * inputs_ * q8::QuantisedX::kMaxValueBytes : 0);
  }
  std::int64_t BlockBytes() const {
    return AlignedBytes(any_q8_ ? tokens_ * (inputs_ / q8::kBlock) * 4 : 0);
  }
  std::int64_t PrepareTasks() const { return (any_q8_ ? tokens_ : 0) + packed_tiles_; }
  std::int64_t RowsPerTask(const LinearWeight& weight) const;
  std::int64_t Tasks(const LinearWeight& weight) const;
  void RunTask(const Totals& totals, const LinearOutput& output, std::int64_t task,
               int thread) const;
  void RunPanelTask(const Totals& totals, const LinearOutput& output, std::int64_t task,
                    int thread) const;

  const float* x_;
  std::int64_t inputs_;
  std::int64_t tokens_;
  std::span<const LinearOutput> outputs_;
  bool any_q8_ = false;
  bool any_float_ = false;
  q8::QuantisedX quantised_;
  float* packed_ = nullptr;
  std::int64_t packed_tiles_ = 0;
  std::int64_t tile_splits_ = 1;  // parts into which each panel's tiles are cut
  std::int64_t task_bytes_ = 0;   // of weights, for a decode task
  std::int64_t first_prepare_task_ = 0;
  std::int64_t first_task_ = 0;
  std::int64_t tasks_ = 0;
};

void Group::AddTo(Totals& totals) const {
  for (const LinearOutput& output : outputs_) {
    const LinearWeight& weight = *output.weight;
    totals.weight_bytes += BytesOf(weight.dtype(), inputs_ * weight.outputs());
    if (weight.dtype() == DType::kQ8_0 || !UsesPanels()) continue;
    totals.panels += (weight.outputs() + flt::PanelRows(inputs_) - 1) / flt::PanelRows(inputs_);
    totals.panel_floats =
        std::max(totals.panel_floats, AlignedBytes(flt::PanelFloats(inputs_) * 4) / 4);
  }
}

std::int64_t Group::ScratchBytes() const {
  const std::int64_t packed = UsesPanels() ? flt::PackedFloats(inputs_, tokens_) * 4 : 0;
  return ValueBytes() + 2 * BlockBytes() + AlignedBytes(packed);
}

void Group::Bind(std::byte* base, const Totals& totals, std::int64_t first_prepare_task,
                 std::int64_t first_task) {
  std::byte* const blocks = base + ValueBytes();
  quantised_ = q8::QuantisedX{.values = base,
                              .scales = reinterpret_cast<float*>(blocks),
                              .corrections = reinterpret_cast<std::int32_t*>(blocks + BlockBytes()),
                              .inputs = inputs_,
                              .tokens = tokens_};
  packed_ = reinterpret_cast<float*>(blocks + 2 * BlockBytes());
  // Enough bytes to make starting a task cheap, few enough for an even finish.
  constexpr std::int64_t kDecodeTasksPerThread = 16;
  constexpr std::int64_t kMinBytes = 32 << 10;
  constexpr std::int64_t kMaxBytes = 512 << 10;
  task_bytes_ = std::clamp(totals.weight_bytes / (kDecodeTasksPerThread * totals.threads),
                           kMinBytes, kMaxBytes);
  if (UsesPanels()) {
    packed_tiles_ = flt::PackedTiles(tokens_);
    // Narrow outputs on many threads: several threads take the same panel, for different tokens.
    constexpr std::int64_t kTasksPerThread = 4;
    const std::int64_t wanted =
        (kTasksPerThread * totals.threads + totals.panels - 1) / totals.panels;
    tile_splits_ = std::clamp<std::int64_t>(wanted, 1, packed_tiles_);
  }
  first_prepare_task_ = first_prepare_task;
  first_task_ = first_task;
  if (tokens_ == 0) return;
  for (const LinearOutput& output : outputs_) tasks_ += Tasks(*output.weight);
}

// One token to quantise, or one tile of them to pack.
void Group::Prepare(std::int64_t task) const {
  task -= first_prepare_task_;
  if (any_q8_) {
    if (task < tokens_) return q8::QuantiseToken(x_ + task * inputs_, task, quantised_);
    task -= tokens_;
  }
  flt::PackTile(x_, inputs_, tokens_, task, packed_);
}

std::int64_t Group::RowsPerTask(const LinearWeight& weight) const {
  constexpr std::int64_t kStep = 2 * q8::kPanelRows;
  const std::int64_t row_bytes = BytesOf(weight.dtype(), inputs_);
  return std::max<std::int64_t>(1, task_bytes_ / row_bytes / kStep) * kStep;
}

std::int64_t Group::Tasks(const LinearWeight& weight) const {
  if (weight.dtype() != DType::kQ8_0 && UsesPanels()) {
    return (weight.outputs() + flt::PanelRows(inputs_) - 1) / flt::PanelRows(inputs_) *
           tile_splits_;
  }
  const std::int64_t rows = RowsPerTask(weight);
  return (weight.outputs() + rows - 1) / rows;
}

void Group::RunPanelTask(const Totals& totals, const LinearOutput& output, std::int64_t task,
                         int thread) const {
  const std::int64_t part = task % tile_splits_;
  const flt::PanelProduct product{
      .w = static_cast<const FloatWeight&>(*output.weight).weights(output.matrix),
      .packed = packed_,
      .tokens = tokens_,
      .y = output.y.as<float>()};
  flt::MultiplyPanel(product, task / tile_splits_, part * packed_tiles_ / tile_splits_,
                     (part + 1) * packed_tiles_ / tile_splits_,
                     totals.panel_room + thread * totals.panel_floats);
}

void Group::RunTask(const Totals& totals, const LinearOutput& output, std::int64_t task,
                    int thread) const {
  const std::int64_t rows = RowsPerTask(*output.weight);
  const std::int64_t begin = task * rows;
  const std::int64_t end = std::min(begin + rows, output.weight->outputs());
  float* const y = output.y.as<float>();
  if (output.weight->dtype() == DType::kQ8_0) {
    const auto& weight = static_cast<const Q8Weight&>(*output.weight);
    const q8::Product product{.panels = weight.panels(output.matrix),
                              .outputs = weight.outputs(),
                              .x = quantised_,
                              .y = y};
    q8::MultiplyPanels(product, begin / q8::kPanelRows, q8::Panels(end));
    return;
  }
  if (UsesPanels()) return RunPanelTask(totals, output, task, thread);
  const auto& weight = static_cast<const FloatWeight&>(*output.weight);
  flt::MultiplyRows(weight.weights(output.matrix), x_, tokens_, y, begin, end);
}

void Group::Run(const Totals& totals, std::int64_t task, int thread) const {
  task -= first_task_;
  for (const LinearOutput& output : outputs_) {
    const std::int64_t tasks = Tasks(*output.weight);
    if (task < tasks) return RunTask(totals, output, task, thread);
    task -= tasks;
  }
}

// All groups of a call, in scratch.
class Call {
 public:
  Call(ThreadPool& pool, std::span<const LinearGroup> groups) : pool_(pool), requests_(groups) {}

  Status Reserve(Scratch& scratch);
  void Prepare() const;
  void Run() const;

 private:
  ThreadPool& pool_;
  std::span<const LinearGroup> requests_;
  Totals totals_;
  std::span<const Group> groups_;
};

Status Call::Reserve(Scratch& scratch) {
  static_assert(std::is_trivially_destructible_v<Group>);
  totals_.threads = pool_.threads();
  std::int64_t group_bytes = 0;
  for (const LinearGroup& request : requests_) {
    const Group group(request);
    group.AddTo(totals_);
    group_bytes += group.ScratchBytes();
  }
  const auto count = static_cast<std::int64_t>(requests_.size());
  const std::int64_t list_bytes = AlignedBytes(count * static_cast<std::int64_t>(sizeof(Group)));
  const std::int64_t room_bytes = totals_.threads * totals_.panel_floats * 4;
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte * at,
      scratch.Reserve(static_cast<std::size_t>(list_bytes + room_bytes + group_bytes)));
  auto* const list = reinterpret_cast<Group*>(at);
  totals_.panel_room = reinterpret_cast<float*>(at + list_bytes);
  at += list_bytes + room_bytes;
  std::int64_t first_prepare_task = 0;
  std::int64_t first_task = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    auto* const group = new (list + i) Group(requests_[static_cast<std::size_t>(i)]);
    group->Bind(at, totals_, first_prepare_task, first_task);
    at += group->ScratchBytes();
    first_prepare_task = group->prepare_end();
    first_task = group->end();
  }
  groups_ = {list, static_cast<std::size_t>(count)};
  return Status::Ok();
}

void Call::Prepare() const {
  const std::int64_t tasks = groups_.back().prepare_end();
  std::int64_t values = 0;
  for (const Group& group : groups_) values += group.values();
  const auto prepare = [this](std::int64_t task, int) {
    std::ranges::upper_bound(groups_, task, {}, &Group::prepare_end)->Prepare(task);
  };
  if (values < kMinSharedValues) {
    for (std::int64_t task = 0; task < tasks; ++task) prepare(task, 0);
  } else {
    pool_.ParallelFor(tasks, prepare);
  }
}

void Call::Run() const {
  pool_.ParallelFor(groups_.back().end(), [this](std::int64_t task, int thread) {
    std::ranges::upper_bound(groups_, task, {}, &Group::end)->Run(totals_, task, thread);
  });
}

}  // namespace

Result<std::unique_ptr<LinearWeight>> MakeLinear(ThreadPool& pool, const TensorView& w) {
  switch (w.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      KVCACHE_RETURN_IF_ERROR(CheckWeight(w));
      return std::unique_ptr<LinearWeight>(std::make_unique<FloatWeight>(w));
    case DType::kQ8_0: KVCACHE_RETURN_IF_ERROR(CheckWeight(w)); return PackQ8(pool, w);
    default:
      return Status(StatusCode::kUnsupported,
                    "linear: no kernels for " + std::string(InfoOf(w.dtype).name) + " weights");
  }
}

Status LinearGroups(ThreadPool& pool, Scratch& scratch, std::span<const LinearGroup> groups) {
  for (const LinearGroup& group : groups) {
    KVCACHE_RETURN_IF_ERROR(CheckGroup(group));
  }
  if (groups.empty()) return Status::Ok();
  Call call(pool, groups);
  KVCACHE_RETURN_IF_ERROR(call.Reserve(scratch));
  call.Prepare();
  call.Run();
  return Status::Ok();
}

}  // namespace kvcache::cpu
