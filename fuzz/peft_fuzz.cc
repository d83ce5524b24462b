// Reads any bytes as an adapter in PEFT's form: adapter_config.json, a zero, and the tensors. What is converted is read as
// an adapter in a GGUF file.
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/peft/peft_adapter.h"
#include "fuzz_input.h"
#include "make_model/make_model.h"
#include "model/adapter/adapter_file.h"

namespace kvcache {
namespace {

const GgufFile& Base() {
  static const auto file = [] {
    const std::string path =
        std::filesystem::temp_directory_path() / ("peft_fuzz." + std::to_string(getpid()));
    make_model::Request request;
    request.shape = {.layers = 1,
                     .hidden_size = 8,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = 4,
                     .ffn = 8,
                     .vocab = 260,
                     .experts = 2,
                     .experts_used = 1,
                     .expert_ffn = 8};
    Check(make_model::MakeModel(request, path).ok());
    auto opened = std::move(*GgufFile::Open(path));
    std::filesystem::remove(path);
    return opened;
  }();
  return *file;
}

void Read(std::string_view config, std::span<const std::byte> tensors) {
  const auto image = ConvertPeftAdapter(config, tensors, "fuzz", Base());
  if (!image.ok()) return Check(!image.status().message().empty());
  const auto adapter = AdapterFile::Parse(*image, "image");
  Check(adapter.ok() || !adapter.status().message().empty());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const end = std::find(data, data + size, 0);
  const auto length = static_cast<std::size_t>(end - data);
  if (length == size) return 0;
  kvcache::Read({reinterpret_cast<const char*>(data), length},
                std::as_bytes(std::span(data, size).subspan(length + 1)));
  return 0;
}
