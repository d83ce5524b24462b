#include "cli/json_report.h"

#include <cstdio>
#include <string>

namespace kvcache::cli {

nlohmann::json ReuseJson(std::int64_t computed) {
  return {{"matched", 0},
          {"restored", 0},
          {"computed", computed},
          {"tiers", {{"live", 0}, {"memory", 0}, {"disk", 0}, {"remote", 0}}},
          {"missed", nlohmann::json::array()}};
}

nlohmann::json MemoryJson(Engine& engine) {
  const EngineOptions& options = engine.options();
  return {
      {"kv_bytes", engine.cache().AllocatedBytes()},
      {"kv_bytes_per_token", BytesPerToken(engine.info().memory, options.k_type, options.v_type)}};
}

void PrintJson(const nlohmann::json& object) {
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  (void)std::fwrite(line.data(), 1, line.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace kvcache::cli
