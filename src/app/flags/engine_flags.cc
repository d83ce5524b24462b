#include "app/flags/engine_flags.h"

#include <string>

#include "app/flags/gpu_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"

namespace kvcache::app {
namespace {

constexpr const char* kGroup = "Cache and machine";

Result<DType> ParseCacheType(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    if (InfoOf(type).name == name) return type;
  }
  return InvalidArgument(Quoted(name) + " is not f32, f16, bf16, q8_0 or q4_0");
}

}  // namespace

void CacheTypeFlags::Add(FlagSet command) {
  const auto add = [&](const char* flag, auto& value, const char* help) {
    const auto parse = [&value](const std::string& name) -> Status {
      KVCACHE_ASSIGN_OR_RETURN(value, ParseCacheType(name));
      return Status::Ok();
    };
    command.AddParsed(flag, parse, help).Group(kGroup).ValueName("T");
  };
  add("--kv-type", kv_,
      "type of cached keys and values: f32, f16 (default), bf16, q8_0 or q4_0; smaller "
      "types take less memory");
  add("--k-type", k_, "type of cached keys, instead of --kv-type");
  add("--v-type", v_, "type of cached values, instead of --kv-type");
}

void EngineFlags::Add(FlagSet command, const std::string& default_context) {
  command
      .AddText("MODEL", &model_,
               "a .gguf file, or a name that 'kvcache list' shows (default: story, the small model "
               "that ships with kvcache)")
      .ValueName("");
  AddWithoutModel(command, default_context);
  AddVerbose(command).Group(kGroup);
}

void EngineFlags::AddWithoutModel(FlagSet command, const std::string& default_context) {
  const auto add = [&](const char* name, int& value, int max, const std::string& help) {
    return command.AddNumber(name, &value, help).Range(1, max).Group(kGroup).ValueName("N");
  };
  add("--ctx", context_, 1 << 28,
      "number of tokens that the model can see at once (default: " + default_context + ")");
  types_.Add(command);
  add("--prefill-chunk", prefill_chunk_, 1 << 16,
      "tokens evaluated in one pass while the prompt is read; changes speed and memory only")
      .ShowDefault();
  add("--checkpoint-spacing", checkpoints_.spacing, 1 << 28,
      "at least N tokens between two saved states of recurrent layers; changes speed and memory "
      "only")
      .ShowDefault();
  add("--threads", threads_, 1024,
      "number of threads (default: one per physical core, within the CPU quota)");
  AddNuma(command, &uses_numa_).Group(kGroup);
  AddGpuLayers(command, &gpu_layers_).Group(kGroup);
}

EngineOptions EngineFlags::Options() const {
  const CacheTypes types = types_.types();
  return {.threads = threads_,
          .uses_numa = uses_numa_,
          .gpu_layers = gpu_layers_,
          .k_type = types.k,
          .v_type = types.v,
          .context = context_,
          .prefill_chunk = prefill_chunk_,
          .checkpoints = checkpoints_,
          .draft_head = draft_head_,
          .adapters = adapters_};
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenFor(int tokens, int sequences) const {
  EngineOptions options = Options();
  if (context_ == 0) options.context = tokens;
  options.max_sequences = sequences;
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(model_));
  return OpenWith(path, options);
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenForRequests(const ForRequests& wanted) const {
  EngineOptions options = Options();
  if (context_ == 0) options.context = wanted.context;
  options.max_sequences = wanted.sequences;
  options.releases_memory = true;
  options.pool_bytes = wanted.plan.CacheBudget();
  options.draft_head = wanted.draft_head;
  options.adapters = wanted.adapters;
  return OpenWith(wanted.path, options);
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenWith(const std::string& path,
                                                      const EngineOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(auto engine, Engine::Open(path, options));
  AddDetail(engine->machine());
  AddNotes(path, engine->tokenizer());
  if (const int own = engine->info().context_length; engine->context() > own) {
    AddNote(StrCat("the model was made for ", WithThousands(own), " tokens of context; with ",
                   WithThousands(engine->context()), " its answers may be poor"));
  }
  return engine;
}

}  // namespace kvcache::app
