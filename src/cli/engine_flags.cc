#include "cli/engine_flags.h"

#include <cstdio>
#include <string>

#include "base/strings.h"
#include "cli/model_store.h"
#include "engine/engine_impl.h"

namespace kvcache::cli {
namespace {

constexpr const char* kGroup = "Cache and machine";

Result<DType> ParseCacheType(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    if (InfoOf(type).name == name) return type;
  }
  return Status(StatusCode::kInvalidArgument,
                Quoted(name) + " is not f32, f16, bf16, q8_0 or q4_0");
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
  const auto add = [&](const char* name, int& value, int most, const std::string& help) {
    return command.AddNumber(name, &value, help).Range(1, most).Group(kGroup).ValueName("N");
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
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenFor(int tokens, int sequences) const {
  const CacheTypes types = types_.types();
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(model_));
  KVCACHE_ASSIGN_OR_RETURN(auto engine,
                           Engine::Open(path, {.threads = threads_,
                                               .k_type = types.k,
                                               .v_type = types.v,
                                               .context = context_ == 0 ? tokens : context_,
                                               .max_sequences = sequences,
                                               .prefill_chunk = prefill_chunk_,
                                               .checkpoints = checkpoints_}));
  PrintNotes(path, engine->tokenizer());
  if (const int own = engine->info().context_length; engine->context() > own) {
    (void)std::fprintf(
        stderr,
        "kvcache: the model was made for %s tokens of context; with %s its answers may be "
        "poor\n",
        WithThousands(own).c_str(), WithThousands(engine->context()).c_str());
  }
  return engine;
}

}  // namespace kvcache::cli
