// kvcache inspect: what a model file holds, and what its cache would cost; or this machine.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/engine_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/shown_text.h"
#include "base/strings.h"
#include "engine/gpu/gpu_backend.h"
#include "gguf/gguf.h"
#include "inspect/inspect.h"
#include "kvcache/cpu_backend.h"
#include "platform/numa/memory_nodes.h"
#include "platform/processors.h"

namespace kvcache::app {
namespace {

struct InspectFlags {
  std::string model;
  CacheTypeFlags types;
  bool machine = false;
  bool tensors = false;
  bool json = false;
};

// Returns a line about memory nodes; empty, if there are not several.
std::string NodesText(const std::vector<MemoryNode>& nodes) {
  if (nodes.size() < 2) return "";
  std::string cores;
  for (const MemoryNode& node : nodes) cores += StrCat(cores.empty() ? "" : " + ", node.cores);
  return StrCat(nodes.size(), " memory nodes with ", cores, " cores\n");
}

nlohmann::ordered_json NodesJson(const std::vector<MemoryNode>& nodes) {
  auto json = nlohmann::ordered_json::array();
  for (const MemoryNode& node : nodes) {
    json.push_back(
        {{"node", node.id}, {"cores", node.cores}, {"processors", node.processors.size()}});
  }
  return json;
}

Status InspectMachine(const InspectFlags& flags) {
  // Fails as running a model would, for a KVCACHE_CPU_TARGET that does not exist.
  KVCACHE_RETURN_IF_ERROR(MakeCpuBackend({.threads = 1}).status());
  const std::vector<std::string> targets = CpuTargetNames();
  const std::vector<MemoryNode> nodes = FindMemoryNodes(AllowedProcessors());
  const Result<Gpu> gpu = FirstGpu();
  if (flags.json) {
    nlohmann::ordered_json json = {{"target", targets.front()}, {"targets", targets}};
    json["memory_nodes"] = NodesJson(nodes);
    if (gpu.ok()) {
      json["gpu"] = {{"name", gpu->name}, {"free_bytes", gpu->free_bytes}};
    } else {
      json["gpu"] = nullptr;
      json["no_gpu"] = std::string(gpu.status().message());
    }
    PrintJson(json);
    return Status::Ok();
  }
  std::string offered;
  for (const std::string& name : targets) offered += (offered.empty() ? "" : ", ") + name;
  (void)std::printf("kernels run with %s, of %s\n", targets.front().c_str(), offered.c_str());
  (void)std::printf("%s", NodesText(nodes).c_str());
  const std::string found =
      gpu.ok() ? StrCat("GPU: ", gpu->name, ", ", WithThousands(gpu->free_bytes >> 20), " MiB free")
               : StrCat("no GPU: ", gpu.status().message());
  (void)std::printf("%s\n", found.c_str());
  return Status::Ok();
}

Status Inspect(const InspectFlags& flags) {
  if (flags.machine) return InspectMachine(flags);
  const CacheTypes types = flags.types.types();
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(flags.model));
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  const ModelDescription description =
      DescribeModelFile(*file, {.k_type = types.k, .v_type = types.v});
  if (flags.json) {
    PrintJson(DescriptionJson(description));
    return Status::Ok();
  }
  const std::string text = Shown(DescriptionText(
      description, flags.tensors ? InspectDetail::kTensors : InspectDetail::kSummary));
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  return Status::Ok();
}

}  // namespace

Command AddInspect(CommandLine& line) {
  FlagSet command =
      line.AddCommand("inspect", "Describe a model file and the memory that its cache takes");
  const auto flags = std::make_shared<InspectFlags>();
  command.AddText("MODEL", &flags->model,
                  "a .gguf file, or a name that 'kvcache list' shows (default: story)");
  flags->types.Add(command);
  command.AddSwitch("--tensors", &flags->tensors, "also list each tensor");
  command.AddSwitch("--machine", &flags->machine,
                    "describe this machine instead: the instruction set that the kernels use, its "
                    "memory nodes, and the GPU");
  command.AddSwitch("--json", &flags->json, "print one JSON object");
  command.RefuseEmptyValues({});
  return {"inspect", [flags] { return Inspect(*flags); }};
}

}  // namespace kvcache::app
