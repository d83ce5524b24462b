#include "app/flags/adapter_flags.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "convert/peft/peft_adapter.h"
#include "gguf/gguf.h"

namespace kvcache::app {

Result<GivenAdapter> ParseAdapter(const std::string& text) {
  GivenAdapter adapter{.path = text};
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon != std::string::npos && !std::filesystem::exists(text, ignored)) {
    if (const auto scale = ParseNumber<float>(std::string_view(text).substr(colon + 1))) {
      adapter = {.path = text.substr(0, colon), .scale = *scale};
    }
  }
  if (adapter.path.empty()) return InvalidArgument(Quoted(text) + " names no file");
  if (!(std::abs(adapter.scale) <= kMaxAdapterScale)) {  // or no number
    return InvalidArgument(StrCat("the scale of ", Quoted(text), " must be from -",
                                  kMaxAdapterScale, " to ", kMaxAdapterScale));
  }
  return adapter;
}

std::string AdapterName(const std::string& path) {
  std::filesystem::path name = path;
  if (!name.has_filename()) name = name.parent_path();  // a directory with a slash at its end
  const std::string ending = name.extension().string();
  // The tensors of a directory have one name in all of them.
  if (ending == ".safetensors" && name.has_parent_path()) return name.parent_path().filename();
  return ending == ".gguf" || ending == ".safetensors" ? name.stem().string()
                                                       : name.filename().string();
}

Result<std::vector<EngineAdapter>> LoadAdapters(const std::vector<GivenAdapter>& adapters,
                                                const std::string& model) {
  std::vector<EngineAdapter> loaded;
  for (const GivenAdapter& adapter : adapters) {
    EngineAdapter& one = loaded.emplace_back();
    one.path = adapter.path;
    one.scale = adapter.scale;
    if (!IsPeftAdapter(adapter.path)) continue;
    KVCACHE_ASSIGN_OR_RETURN(const auto base, GgufFile::Open(model));
    KVCACHE_ASSIGN_OR_RETURN(auto image, ImportPeftAdapter(adapter.path, *base));
    one.image = std::make_shared<const std::vector<std::byte>>(std::move(image));
  }
  return loaded;
}

void AdapterFlags::Add(FlagSet command) {
  command
      .AddText("--adapter", &texts_,
               "a LoRA adapter for the model, with the factor on what it adds (default: 1): a "
               ".gguf file, or a directory in PEFT's form; may be given several times (default: "
               "the ADAPTERs of a model that has some)")
      .ValueName("FILE[:SCALE]")
      .Check([](const std::string& text) { return ParseAdapter(text).status(); });
}

void AdapterFlags::SetDefault(const std::vector<std::string>& paths) {
  paths_ = paths;
}

std::vector<GivenAdapter> AdapterFlags::given() const {
  std::vector<GivenAdapter> given;
  for (const std::string& text : texts_) {
    if (auto adapter = ParseAdapter(text); adapter.ok()) given.push_back(*adapter);  // was checked
  }
  if (!texts_.empty()) return given;
  for (const std::string& path : paths_) given.push_back({.path = path});
  return given;
}

std::vector<AdapterUse> AdapterFlags::Uses() const {
  std::vector<AdapterUse> uses;
  for (const GivenAdapter& adapter : given()) {
    uses.push_back({static_cast<int>(uses.size()), adapter.scale});
  }
  return uses;
}

}  // namespace kvcache::app
