#include "engine/gpu/gpu_backend.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/split_backend.h"
#include "kvcache_engine/engine.h"
#include "platform/processors.h"

namespace kvcache {
namespace {

constexpr std::string_view kPortable = "EMU128";

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// The files beside a model, opened.
struct FilesBeside {
  std::unique_ptr<GgufFile> head;
  std::vector<std::unique_ptr<GgufFile>> adapters;
};

Result<FilesBeside> OpenBeside(const GgufFile& model, const BackendWants& wants) {
  FilesBeside files;
  if (!wants.draft_head.empty() && wants.draft_head != model.path()) {
    KVCACHE_ASSIGN_OR_RETURN(files.head, GgufFile::Open(wants.draft_head));
  }
  for (const EngineAdapter& adapter : wants.adapters) {
    KVCACHE_ASSIGN_OR_RETURN(auto file, adapter.image != nullptr
                                            ? GgufFile::Parse(*adapter.image, adapter.path)
                                            : GgufFile::Open(adapter.path));
    files.adapters.push_back(std::move(file));
  }
  return files;
}

// Returns the plan for a GPU. The model is described without its weights.
Result<GpuPlan> PlanFor(const GgufFile& file, BackendWants wants, const Gpu& gpu, int* layers) {
  const std::unique_ptr<Backend> shapes = MakeShapeBackend();
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(file, *shapes));
  KVCACHE_ASSIGN_OR_RETURN(const FilesBeside beside, OpenBeside(file, wants));
  GpuFiles files{.model = file};
  if (!wants.draft_head.empty()) {
    files.head = beside.head != nullptr ? beside.head.get() : &file;
    KVCACHE_RETURN_IF_ERROR(model->LoadHead(*files.head).WithContext(wants.draft_head));
  }
  for (const auto& adapter : beside.adapters) files.adapters.push_back(adapter.get());
  *layers = model->info().layers;
  if (wants.cache.context == 0) {
    wants.cache.context = std::min(model->info().context_length, kDefaultContext);
  }
  const GpuNeeds needs = NeedsOf(files, model->info(), wants.cache);
  if (wants.gpu_layers < 0) return PlanOfFreeMemory(needs, wants.cache, gpu.free_bytes);
  return PlanOfLayers(wants.gpu_layers, needs, wants.cache, gpu.free_bytes);
}

Result<BackendChoice> OverGpu(const GgufFile& file, const BackendWants& wants, const Gpu& gpu,
                              BackendChoice choice) {
  int layers = 0;
  KVCACHE_ASSIGN_OR_RETURN(choice.plan, PlanFor(file, wants, gpu, &layers));
  if (choice.plan.layers == 0) {
    choice.reason = StrCat(gpu.name, " has ", WithThousands(gpu.free_bytes / kMiB),
                           " MiB free, too little for a layer and the context");
    return choice;
  }
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> device, gpu.open(wants.threads));
  choice.gpu = gpu.name;
  choice.layers = layers;
  if (choice.plan.layers == layers) {
    choice.backend = std::move(device);
  } else {
    choice.backend =
        MakeSplitBackend(std::move(choice.backend), std::move(device), layers - choice.plan.layers);
  }
  return choice;
}

Result<BackendChoice> OverProcessor(const BackendWants& wants) {
  BackendChoice choice;
  KVCACHE_ASSIGN_OR_RETURN(
      choice.backend, MakeCpuBackend({.threads = wants.threads, .uses_numa = wants.uses_numa}));
  const int threads = wants.threads > 0 ? wants.threads : FindProcessorLimits().DefaultThreads();
  choice.processor =
      StrCat(CpuTargetName(), " with ", threads, threads == 1 ? " thread" : " threads");
  const std::string placement = CpuPlacement(*choice.backend);
  if (!placement.empty()) choice.processor += StrCat(", ", placement);
  return choice;
}

}  // namespace

std::string MachineLine(const BackendChoice& choice, std::int64_t tokens) {
  const std::string processor = StrCat("processor: ", choice.processor);
  if (choice.gpu.empty()) {
    return choice.reason.empty() ? processor : StrCat(processor, "; no GPU: ", choice.reason);
  }
  const std::int64_t bytes = choice.plan.fixed_bytes + choice.plan.token_bytes * tokens;
  std::string line = StrCat(choice.gpu, ": ", choice.plan.layers, " of ", choice.layers,
                            " layers, ", WithThousands(bytes / kMiB), " MiB");
  if (tokens > 0) line += StrCat(" with ", WithThousands(tokens), " tokens of keys and values");
  if (!choice.reason.empty()) line += StrCat(" (", choice.reason, ")");
  return StrCat(line, "; ", processor);
}

Result<BackendChoice> ChooseBackend(const GgufFile& file, const BackendWants& wants,
                                    const FindGpu& find) {
  KVCACHE_ASSIGN_OR_RETURN(BackendChoice choice, OverProcessor(wants));
  if (wants.gpu_layers == 0) return choice;
  const bool is_asked = wants.gpu_layers > 0;
  if (const std::string target = CpuTargetName(); target == kPortable) {
    choice.reason = StrCat("the processor's kernels are ", target,
                           ", which round twice: their bits are not a GPU's");
    if (!is_asked) return choice;
    return Unsupported(choice.reason);
  }
  auto gpu = find();
  if (!gpu.ok()) {
    choice.reason = std::string(gpu.status().message());
    if (!is_asked) return choice;
    return std::move(gpu).TakeStatus().WithContext(
        StrCat(wants.gpu_layers, " layers are asked for on a GPU"));
  }
  auto over = OverGpu(file, wants, *gpu, std::move(choice));
  if (over.ok() || is_asked) return over;
  // The processor computes what the GPU cannot.
  KVCACHE_ASSIGN_OR_RETURN(BackendChoice processor, OverProcessor(wants));
  processor.reason = StrCat(gpu->name, ": ", over.status().message());
  return processor;
}

}  // namespace kvcache
