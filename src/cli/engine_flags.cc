#include "cli/engine_flags.h"

#include "cli/model_store.h"

namespace kvcache::cli {
namespace {

Result<DType> ParseCacheType(const std::string& flag, const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    if (InfoOf(type).name == name) return type;
  }
  return Status(StatusCode::kInvalidArgument,
                flag + " is '" + name + "', expected f32, f16 or bf16");
}

}  // namespace

void EngineFlags::Add(CLI::App& command) {
  command.add_option("MODEL", model_,
                     "a .gguf file, or a name that 'kvcache list' shows (default: the small "
                     "model that ships)");
  const std::string group = "Cache and machine";
  command.add_option("--ctx", context_, "tokens of context (default: the model's, at most 8,192)")
      ->check(CLI::Range(1, 1 << 28))
      ->group(group)
      ->type_name("N");
  command.add_option("--kv-type", kv_type_, "type of cached keys and values: f32, f16, bf16")
      ->group(group)
      ->type_name("T")
      ->capture_default_str();
  command.add_option("--k-type", k_type_, "type of cached keys alone")
      ->group(group)
      ->type_name("T");
  command.add_option("--v-type", v_type_, "type of cached values alone")
      ->group(group)
      ->type_name("T");
  command.add_option("--prefill-chunk", prefill_chunk_, "tokens per pass over the prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->group(group)
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--threads", threads_, "threads (default: one per core)")
      ->check(CLI::Range(1, 1024))
      ->group(group)
      ->type_name("N");
}

Result<EngineOptions> EngineFlags::Options() const {
  EngineOptions options;
  options.threads = threads_;
  options.context = context_;
  options.prefill_chunk = prefill_chunk_;
  KVCACHE_ASSIGN_OR_RETURN(options.k_type, k_type_.empty() ? ParseCacheType("--kv-type", kv_type_)
                                                           : ParseCacheType("--k-type", k_type_));
  KVCACHE_ASSIGN_OR_RETURN(options.v_type, v_type_.empty() ? ParseCacheType("--kv-type", kv_type_)
                                                           : ParseCacheType("--v-type", v_type_));
  return options;
}

Result<std::unique_ptr<Engine>> EngineFlags::Open() const {
  return OpenFor(0);
}

Result<std::unique_ptr<Engine>> EngineFlags::OpenFor(int tokens) const {
  KVCACHE_ASSIGN_OR_RETURN(EngineOptions options, Options());
  if (options.context == 0) options.context = tokens;
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(model_));
  return Engine::Open(path, options);
}

}  // namespace kvcache::cli
