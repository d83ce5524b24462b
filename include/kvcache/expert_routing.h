// Experts whose choice stays in a backend's memory, so that the host need not wait for it.
//
// A slot is the place of one token in the group of one of its experts. Slots are sorted by expert, and by token
// within an expert. Tensors "by slot" have one column per slot, [width, tokens × chosen]; how many slots an
// expert has, only the backend knows.
//
//   choices          t0: 5 1   t1: 1 3   t2: 5 3
//   slots            expert 1: t0 t1 | expert 3: t1 t2 | expert 5: t0 t2
//
// A backend without such an object (Backend::MakeRouting returns null) still serves experts: Backend::Route gives
// the host the choice, and the host groups the tokens.
//
// Thread safety: that of the backend, which must outlive the object. Spans are host memory; tensors lie in the
// backend's. Errors: kInvalidArgument for shapes that do not match, with both sides.
// Exactness: each column has the bits of the calls of kvcache/backend.h that are named below.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

class LinearWeight;
struct RouterOptions;

// The largest calls that an ExpertRouting serves.
struct RoutingSizes {
  std::int64_t tokens = 0;
  int experts = 0;
  int chosen = 0;  // experts per token
};

// A product of each slot with its expert's matrix, which is matrix first + expert × step of a stack.
struct ExpertOutput {
  const LinearWeight* weight = nullptr;
  TensorView y;  // by slot: [outputs, slots], f32, dense
  std::int64_t first = 0;
  std::int64_t step = 1;
};

// The slots' tokens and experts, [slots] each.
struct ExpertSlots {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> experts;
};

class ExpertRouting {
 public:
  virtual ~ExpertRouting() = default;

  // Chooses the experts of a batch, as Backend::Route does, and sorts the choices into slots. Each weight is
  // multiplied by its expert's factor; `factors` is [experts], or empty. The other calls are about this batch.
  virtual Status Route(const TensorView& logits, const RouterOptions& options,
                       std::span<const float> factors) = 0;

  // Computes columns[:, i] = x[:, token of slot i], for x [width, batch].
  virtual Status GatherTokens(const TensorView& x, const TensorView& columns) = 0;

  // Computes columns[:, i] = row (expert of slot i) of `table` [width, experts], any weight type, as f32.
  virtual Status GatherExperts(const TensorView& table, const TensorView& columns) = 0;

  // Computes columns[:, i] *= the weight of slot i's choice. Combine then counts all weights as 1.
  virtual Status WeighInputs(const TensorView& columns) = 0;

  // Computes columns[:, i] *= factors[expert of slot i]; `factors` is [experts].
  virtual Status ScaleByExpert(const TensorView& columns, std::span<const float> factors) = 0;

  // Computes y[:, i] = W x[:, i] for each output, as Backend::Linear does, W being the matrix of slot i's expert.
  // x is by slot, [inputs, slots], f32, dense; or [inputs, 1], and all slots read its column.
  virtual Status Linear(const TensorView& x, std::span<const ExpertOutput> outputs) = 0;

  // Computes out[:, t] = Σ_j weight of choice j × columns[:, slot of choice j] over the choices of token t, as
  // Backend::Combine does.
  virtual Status Combine(const TensorView& columns, const TensorView& out) = 0;

  // Returns the slots, valid until the next Route. Waits for the backend.
  virtual Result<ExpertSlots> Slots() = 0;
};

}  // namespace kvcache
