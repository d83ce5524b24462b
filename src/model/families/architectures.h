// The loaders of all architectures; architectures.cc has the table of their names. Each loader's
// file describes the models that it supports.
#pragma once

#include <memory>
#include <string_view>

#include "model/model.h"

namespace kvcache {

// `name` is the file's general.architecture, since one loader may support several.
using ArchitectureLoader = Result<std::unique_ptr<Model>> (*)(const GgufFile& file,
                                                              std::string_view name,
                                                              Backend& backend);

Result<std::unique_ptr<Model>> LoadGemma(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadDeepSeek2(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadGemma4(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadGptOss(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadGraniteHybrid(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadLfm2(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadLlama(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadLlama4(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadMistral3(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadMllama(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadQwen2(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadQwen3(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadQwen3Next(const GgufFile&, std::string_view name, Backend&);
Result<std::unique_ptr<Model>> LoadT5(const GgufFile&, std::string_view name, Backend&);

}  // namespace kvcache
