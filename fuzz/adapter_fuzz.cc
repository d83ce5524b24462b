// Reads any bytes as an adapter in a GGUF file, and gives it to a model. Sanitizers detect memory errors; the checks here
// are the reader's contract.
#include <unistd.h>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "fuzz_input.h"
#include "kvcache/cpu_backend.h"
#include "make_model/make_model.h"
#include "model/adapter/adapter_bank.h"
#include "model/model.h"

namespace kvcache {
namespace {

// A model whose tensors the first inputs name.
struct Base {
  std::unique_ptr<Backend> backend = std::move(*MakeCpuBackend({.threads = 1}));
  std::unique_ptr<GgufFile> file;

  Base() {
    const std::string path =
        std::filesystem::temp_directory_path() / ("adapter_fuzz." + std::to_string(getpid()));
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
    file = std::move(*GgufFile::Open(path));
    std::filesystem::remove(path);
  }
};

void ReadAll(const AdapterFile& adapter) {
  static const Base base;
  Check(!adapter.pairs().empty());
  for (const AdapterPair& pair : adapter.pairs()) {
    Check(pair.a != nullptr && pair.b != nullptr && pair.rank > 0 &&
          pair.rank <= adapter.max_rank());
  }
  const auto model = std::move(*LoadModel(*base.file, *base.backend));
  const Status added = model->AddAdapter(adapter);
  Check(added.ok() || !added.message().empty());
  if (added.ok()) Check(model->Reserve(4).ok());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto adapter = kvcache::AdapterFile::Parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (adapter.ok()) kvcache::ReadAll(**adapter);
  return 0;
}
