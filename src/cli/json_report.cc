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

namespace {

// The library escapes controls below U+0020 alone; a terminal obeys U+007F to U+009F, too. They
// stand in strings only.
std::string EscapeControls(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const auto next = static_cast<unsigned char>(i + 1 < json.size() ? json[i + 1] : 0);
    const bool is_control = byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next < 0xa0);
    if (!is_control) {
      out += json[i];
      continue;
    }
    char escape[8];
    (void)std::snprintf(escape, sizeof(escape), "\\u%04x", byte == 0x7f ? byte : next);
    out += escape;
    if (byte != 0x7f) ++i;
  }
  return out;
}

}  // namespace

void PrintJson(const nlohmann::json& object) {
  const std::string line =
      EscapeControls(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n";
  (void)std::fwrite(line.data(), 1, line.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace kvcache::cli
