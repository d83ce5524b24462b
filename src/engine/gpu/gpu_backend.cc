#include "engine/gpu/gpu_backend.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/split_backend.h"
#include "kvcache_engine/engine.h"

namespace kvcache {
namespace {

constexpr std::string_view kPortable = "EMU128";

// Returns the plan for a GPU. The model is described without its weights.
Result<GpuPlan> PlanFor(const GgufFile& file, BackendWants wants, const Gpu& gpu, int* layers) {
  const std::unique_ptr<Backend> shapes = MakeShapeBackend();
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(file, *shapes));
  *layers = model->info().layers;
  if (wants.cache.context == 0) {
    wants.cache.context = std::min(model->info().context_length, kDefaultContext);
  }
  const GpuNeeds needs = NeedsOf(file, model->info(), wants.cache);
  if (wants.gpu_layers < 0) return PlanOfFreeMemory(needs, wants.cache, gpu.free_bytes);
  return PlanOfLayers(wants.gpu_layers, needs, wants.cache, gpu.free_bytes);
}

Result<BackendChoice> OverGpu(const GgufFile& file, const BackendWants& wants, const Gpu& gpu,
                              BackendChoice choice) {
  int layers = 0;
  KVCACHE_ASSIGN_OR_RETURN(choice.plan, PlanFor(file, wants, gpu, &layers));
  if (choice.plan.layers == 0) return choice;
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> device, gpu.open(wants.threads));
  choice.machine = StrCat(gpu.name, ": ", choice.plan.layers, " of ", layers, " layers");
  if (choice.plan.layers == layers) {
    choice.backend = std::move(device);
  } else {
    choice.backend =
        MakeSplitBackend(std::move(choice.backend), std::move(device), layers - choice.plan.layers);
  }
  return choice;
}

}  // namespace

Result<BackendChoice> ChooseBackend(const GgufFile& file, const BackendWants& wants,
                                    const FindGpu& find) {
  BackendChoice choice;
  KVCACHE_ASSIGN_OR_RETURN(choice.backend, MakeCpuBackend({.threads = wants.threads}));
  if (wants.gpu_layers == 0) return choice;
  const bool is_asked = wants.gpu_layers > 0;
  if (const std::string target = CpuTargetName(); target == kPortable) {
    if (!is_asked) return choice;
    return Unsupported(StrCat("the processor's kernels are ", target,
                              ", which round twice: their bits are not a GPU's"));
  }
  auto gpu = find();
  if (!gpu.ok()) {
    if (!is_asked) return choice;
    return std::move(gpu).TakeStatus().WithContext(
        StrCat(wants.gpu_layers, " layers are asked for on a GPU"));
  }
  auto over = OverGpu(file, wants, *gpu, std::move(choice));
  if (over.ok() || is_asked) return over;
  // The processor computes what the GPU cannot.
  BackendChoice processor;
  KVCACHE_ASSIGN_OR_RETURN(processor.backend, MakeCpuBackend({.threads = wants.threads}));
  processor.machine = StrCat(gpu->name, " is not used: ", over.status().message());
  return processor;
}

}  // namespace kvcache
