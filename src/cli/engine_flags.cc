#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "base/strings.h"
#include "cli/flag_checks.h"
#include "cli/model_store.h"
#include "engine/engine_impl.h"

namespace kvcache::cli {
namespace {

constexpr const char* kGroup = "Cache and machine";

DType ParseCacheType(const std::string& flag, const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    if (InfoOf(type).name == name) return type;
  }
  throw CLI::ValidationError(flag, Quoted(name) + " is not f32, f16, bf16, q8_0 or q4_0");
}

}  // namespace

void CacheTypeFlags::Add(CLI::App& command) {
  const auto add = [&](const std::string& flag, auto& value, const char* help) {
    command
        .add_option_function<std::string>(
            flag, [flag, &value](const std::string& name) { value = ParseCacheType(flag, name); },
            help)
        ->group(kGroup)
        ->type_name("T");
  };
  add("--kv-type", kv_,
      "type of cached keys and values: f32, f16 (default), bf16, q8_0 or q4_0; smaller "
      "types take less memory");
  add("--k-type", k_, "type of cached keys, instead of --kv-type");
  add("--v-type", v_, "type of cached values, instead of --kv-type");
}

void EngineFlags::Add(CLI::App& command, const std::string& default_context) {
  command
      .add_option(
          "MODEL", model_,
          "a .gguf file, or a name that 'kvcache list' shows (default: story, the small model "
          "that ships with kvcache)")
      ->type_name("");
  const auto add = [&](const char* name, int& value, int most, const std::string& help) {
    return command.add_option(name, value, help)
        ->check(WholeNumber())
        ->check(CLI::Range(1, most).description(""))
        ->group(kGroup)
        ->type_name("N");
  };
  add("--ctx", context_, 1 << 28,
      "number of tokens that the model can see at once (default: " + default_context + ")");
  types_.Add(command);
  add("--prefill-chunk", prefill_chunk_, 1 << 16,
      "tokens evaluated in one pass while the prompt is read; changes speed and memory only")
      ->capture_default_str();
  add("--checkpoint-spacing", checkpoints_.spacing, 1 << 28,
      "at least N tokens between two saved states of recurrent layers; changes speed and memory "
      "only")
      ->capture_default_str();
  add("--threads", threads_, 1024, "number of threads (default: one per core)");
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenFor(int tokens) const {
  const CacheTypes types = types_.types();
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(model_));
  KVCACHE_ASSIGN_OR_RETURN(auto engine,
                           Engine::Open(path, {.threads = threads_,
                                               .k_type = types.k,
                                               .v_type = types.v,
                                               .context = context_ == 0 ? tokens : context_,
                                               .max_sequences = 1,
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
