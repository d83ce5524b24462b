#include "backend/cuda/ops/expert_routing.h"

#include <new>
#include <string>

#include "backend/cpu/ops/elementwise_check.h"
#include "backend/cpu/ops/experts_check.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/slot_products.h"
#include "backend/cuda/ops/elementwise.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kGroup{"group_slots", kSlotThreads};
constexpr Kernel kGather{"gather_columns", kGatherThreads};

std::string Shape(const TensorView& view) {
  return std::string(InfoOf(view.dtype).name) + " [" + std::to_string(view.dims[0]) + ", " +
         std::to_string(view.dims[1]) + "]";
}

bool IsF32Columns(const TensorView& view) {
  return view.dtype == DType::kF32 && view.stride_bytes[0] == 4 && view.dims[2] == 1 &&
         view.dims[3] == 1;
}

std::int64_t FloatsBetween(const TensorView& view) {
  return view.stride_bytes[1] / static_cast<std::int64_t>(sizeof(float));
}

// Cuts arrays off a buffer, each 256-byte aligned.
class Cutter {
 public:
  explicit Cutter(std::byte* at) : at_(reinterpret_cast<std::uintptr_t>(at)) {}
  template <class T>
  T* Take(std::int64_t count) {
    T* const taken = reinterpret_cast<T*>(at_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return taken;
  }
  std::size_t used() const { return used_; }

 private:
  std::uintptr_t at_;  // 0 while the bytes are only counted
  std::size_t used_ = 0;
};

// Returns the bytes of all arrays from `at` on, whose addresses go to `choices` and `table`.
std::size_t PlaceArrays(const RoutingSizes& sizes, std::byte* at, DeviceChoices& choices,
                        SlotTable& table) {
  const std::int64_t slots = sizes.tokens * sizes.chosen;
  Cutter cutter(at);
  choices.experts = cutter.Take<std::int32_t>(slots);
  choices.weights = cutter.Take<float>(slots);
  table.of_choice = cutter.Take<std::int32_t>(slots);
  table.tokens = cutter.Take<std::int32_t>(slots);
  table.experts = cutter.Take<std::int32_t>(slots);
  table.weights = cutter.Take<float>(slots);
  table.begin = cutter.Take<std::int32_t>(sizes.experts + 1);
  return cutter.used();
}

}  // namespace

Result<std::unique_ptr<ExpertRouting>> CudaRouting::Make(Device& device, CallMemory& memory,
                                                         const RoutingSizes& sizes) {
  std::unique_ptr<CudaRouting> routing(new (std::nothrow) CudaRouting(device, memory, sizes));
  if (routing == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for expert routing");
  KVCACHE_RETURN_IF_ERROR(routing->Allocate());
  return std::unique_ptr<ExpertRouting>(std::move(routing));
}

Status CudaRouting::Allocate() {
  const auto slots = static_cast<std::size_t>(sizes_.tokens * sizes_.chosen);
  KVCACHE_ASSIGN_OR_RETURN(buffer_,
                           device_.Allocate(PlaceArrays(sizes_, nullptr, choices_, table_)));
  PlaceArrays(sizes_, buffer_->data(), choices_, table_);
  try {
    tokens_of_slots_.reserve(slots);
    experts_of_slots_.reserve(slots);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory,
            "no memory for " + std::to_string(slots) + " slots of experts"};
  }
  return Status::Ok();
}

Status CudaRouting::CheckColumns(const char* what, const TensorView& columns) const {
  if (IsF32Columns(columns) && columns.dims[1] == slots_) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          std::string("expert routing: ") + what + " are " + Shape(columns) +
              "; must be f32 columns, one for each of " + std::to_string(slots_) + " slots"};
}

Status CudaRouting::Route(const TensorView& logits, const RouterOptions& options,
                          std::span<const float> factors) {
  memory_.BeginCall();
  const std::int64_t slots = logits.dims[1] * options.chosen;
  if (logits.dims[1] > sizes_.tokens || options.chosen != sizes_.chosen ||
      logits.dims[0] != sizes_.experts ||
      (!factors.empty() && static_cast<std::int64_t>(factors.size()) != logits.dims[0])) {
    return {StatusCode::kInvalidArgument,
            "expert routing: logits are " + Shape(logits) + ", chosen is " +
                std::to_string(options.chosen) + ", and there are " +
                std::to_string(factors.size()) + " factors; the object is for " +
                std::to_string(sizes_.tokens) + " tokens and " + std::to_string(sizes_.chosen) +
                " of " + std::to_string(sizes_.experts) + " experts"};
  }
  const auto count = static_cast<std::size_t>(slots);
  KVCACHE_RETURN_IF_ERROR(cpu::CheckRoute(logits, options, count, count));
  slots_ = slots;
  tokens_ = logits.dims[1];
  weighed_ = false;
  KVCACHE_RETURN_IF_ERROR(RouteOnDevice(device_, memory_, logits, options, factors, choices_));
  const GroupArgs args{.choices = choices_.experts,
                       .weights = choices_.weights,
                       .to = table_,
                       .count = static_cast<std::int32_t>(slots),
                       .chosen = sizes_.chosen};
  return Launch(device_, kGroup, {.x = sizes_.experts}, args, sizeof(GroupMemory));
}

Status CudaRouting::Gather(const TensorView& x, const std::int32_t* from,
                           const TensorView& columns) {
  const std::int64_t blocks = (columns.dims[0] + kGatherBlock - 1) / kGatherBlock;
  const GatherArgs args{.x = x.as<const float>(),
                        .from = from,
                        .y = columns.as<float>(),
                        .x_stride = FloatsBetween(x),
                        .y_stride = FloatsBetween(columns),
                        .width = columns.dims[0],
                        .blocks = static_cast<std::int32_t>(blocks),
                        .vectors = HoldsVectors(x.as<const float>(), FloatsBetween(x)) &&
                                   HoldsVectors(columns.as<const float>(), FloatsBetween(columns))};
  return Launch(device_, kGather, {.x = blocks * columns.dims[1]}, args);
}

Status CudaRouting::GatherTokens(const TensorView& x, const TensorView& columns) {
  KVCACHE_RETURN_IF_ERROR(CheckColumns("columns", columns));
  if (!IsF32Columns(x) || x.dims[0] != columns.dims[0] || x.dims[1] != tokens_) {
    return {StatusCode::kInvalidArgument,
            "expert routing: x is " + Shape(x) + " and columns are " + Shape(columns) +
                "; must be f32 of one width, x with a column for each of " +
                std::to_string(tokens_) + " tokens"};
  }
  return Gather(x, table_.tokens, columns);
}

Status CudaRouting::GatherExperts(const TensorView& table, const TensorView& columns) {
  memory_.BeginCall();
  KVCACHE_RETURN_IF_ERROR(CheckColumns("columns", columns));
  KVCACHE_RETURN_IF_ERROR(cpu::CheckEmbedShapes(table, slots_, columns));
  if (table.dims[1] != sizes_.experts) {
    return {StatusCode::kInvalidArgument, "expert routing: the table is " + Shape(table) +
                                              "; must have a row for each of " +
                                              std::to_string(sizes_.experts) + " experts"};
  }
  return EmbedRows(device_, memory_, table, table_.experts, columns);
}

Status CudaRouting::WeighInputs(const TensorView& columns) {
  KVCACHE_RETURN_IF_ERROR(CheckColumns("columns", columns));
  weighed_ = true;
  return ScaleColumnsBy(device_, columns, {.values = table_.weights});
}

Status CudaRouting::ScaleByExpert(const TensorView& columns, std::span<const float> factors) {
  memory_.BeginCall();
  KVCACHE_RETURN_IF_ERROR(CheckColumns("columns", columns));
  if (static_cast<std::int64_t>(factors.size()) != sizes_.experts) {
    return {StatusCode::kInvalidArgument,
            "expert routing: there are " + std::to_string(factors.size()) +
                " factors; must be one for each of " + std::to_string(sizes_.experts) + " experts"};
  }
  KVCACHE_ASSIGN_OR_RETURN(const float* const values, memory_.Upload(factors));
  return ScaleColumnsBy(device_, columns, {.values = values, .which = table_.experts});
}

Status CudaRouting::Linear(const TensorView& x, std::span<const ExpertOutput> outputs) {
  memory_.BeginCall();
  return LinearSlots(
      device_, memory_,
      {.begin = table_.begin, .experts = sizes_.experts, .slots = slots_, .tokens = tokens_}, x,
      outputs);
}

Status CudaRouting::Combine(const TensorView& columns, const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(CheckColumns("columns", columns));
  if (!IsF32Columns(out) || out.dims[0] != columns.dims[0] || out.dims[1] != tokens_) {
    return {StatusCode::kInvalidArgument,
            "expert routing: columns are " + Shape(columns) + " and out is " + Shape(out) +
                "; must be f32 of one width, out with a column for each of " +
                std::to_string(tokens_) + " tokens"};
  }
  return CombineOnDevice(device_, columns,
                         {.columns = table_.of_choice,
                          .weights = weighed_ ? nullptr : choices_.weights,
                          .parts = sizes_.chosen},
                         out);
}

Result<ExpertSlots> CudaRouting::Slots() {
  tokens_of_slots_.resize(static_cast<std::size_t>(slots_));
  experts_of_slots_.resize(tokens_of_slots_.size());
  const auto copy = [&](const std::int32_t* from, std::vector<std::int32_t>& to) {
    return device_.CopyOut(reinterpret_cast<const std::byte*>(from),
                           std::as_writable_bytes(std::span(to)));
  };
  KVCACHE_RETURN_IF_ERROR(copy(table_.tokens, tokens_of_slots_));
  KVCACHE_RETURN_IF_ERROR(copy(table_.experts, experts_of_slots_));
  return ExpertSlots{tokens_of_slots_, experts_of_slots_};
}

}  // namespace kvcache::cuda
