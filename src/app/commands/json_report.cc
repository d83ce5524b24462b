#include "app/commands/json_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/engine_impl.h"

namespace kvcache::app {
namespace {

// JSON escapes U+0000 to U+001F; a terminal obeys U+007F to U+009F, too.
std::string WithoutControls(std::string_view json) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    auto byte = static_cast<unsigned char>(json[i]);
    const bool is_c1 = byte == 0xc2 && i + 1 < json.size() && (json[i + 1] & 0x60) == 0;
    if (!is_c1 && byte != 0x7f) {
      out += json[i];
      continue;
    }
    if (is_c1) byte = static_cast<unsigned char>(json[++i]);
    out += "\\u00";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace

nlohmann::json PromptTokensJson(std::int64_t computed, std::int64_t restored,
                                const std::string& tier) {
  nlohmann::json tiers = {{"live", 0}, {"memory", 0}, {"disk", 0}, {"remote", 0}};
  tiers[tier] = restored;
  return {{"matched", restored},
          {"restored", restored},
          {"computed", computed},
          {"tiers", std::move(tiers)},
          {"missed", nlohmann::json::array()}};
}

nlohmann::json MemoryJson(Engine& engine) {
  const EngineOptions& options = engine.options();
  return {
      {"kv_bytes", engine.cache().memory()->AllocatedBytes()},
      {"kv_bytes_per_token", BytesPerToken(engine.info().memory, options.k_type, options.v_type)}};
}

void PrintJson(const nlohmann::json& object) {
  const std::string line =
      WithoutControls(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n";
  (void)std::fwrite(line.data(), 1, line.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace kvcache::app
