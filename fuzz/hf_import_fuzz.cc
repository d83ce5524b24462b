// Reads any bytes as tokenizer.json, or as config.json beside weights of a fixed kind: they are converted,
// or refused with a message.
//
//   input   a byte that selects one of the two, then the text
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "convert/hf_tokenizer.h"
#include "convert/import_model.h"
#include "fuzz_input.h"

namespace kvcache {
namespace {

void FuzzTokenizer(std::string_view text) {
  const auto tokenizer = nlohmann::json::parse(text, nullptr, false);
  if (tokenizer.is_discarded()) return;
  for (const auto fallback : {HfFallbackKind::kScores, HfFallbackKind::kMerges}) {
    const auto converted = ConvertHfTokenizer(tokenizer, 300, fallback);
    if (!converted.ok()) Check(!converted.status().message().empty());
  }
}

void Write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The weights have one tensor, so that an import ends with an error at the latest when it looks for the next.
const std::string& Directory() {
  static const std::string directory = [] {
    const std::string made =
        std::filesystem::temp_directory_path() / ("kvcache-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(made);
    const std::string header =
        R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[4,8],"data_offsets":[0,128]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    Write(made + "/model.safetensors", file + header + std::string(128, '\0'));
    Write(made + "/tokenizer.json", "{}");
    return made;
  }();
  return directory;
}

void FuzzConfig(std::string_view text) {
  Write(Directory() + "/config.json", text);
  const auto imported =
      ImportModel({.directory = Directory(), .path = Directory() + "/model.gguf", .threads = 1});
  Check(!imported.ok() && !imported.status().message().empty());
  Check(!std::filesystem::exists(Directory() + "/model.gguf"));
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  TakeByte(&text) % 2 == 0 ? FuzzTokenizer(text) : FuzzConfig(text);
  return 0;
}
