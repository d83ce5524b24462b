// The settings of a GGUF model as Hugging Face's config.json has them, for tests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "gguf/gguf.h"
#include "import/hf_writer.h"

namespace kvcache {

// Return ARCHITECTURE.key of the file, or `otherwise`.
std::int64_t HfKey(const GgufFile& file, const std::string& key, std::int64_t otherwise = 0);
double HfFloatKey(const GgufFile& file, const std::string& key, double otherwise = 0);

nlohmann::json HfConfigJson(const GgufFile& file, const HfStyle& style);

}  // namespace kvcache
