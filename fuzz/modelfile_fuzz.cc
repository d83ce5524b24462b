// Reads any bytes as a Modelfile, a manifest, a name of a model, or a layer of parameters or
// messages. Checks that they are read or refused with a message, and that what was read is written
// and read back equal.
//
//   input   a byte that selects one of the five, then the text
#include <string>
#include <string_view>

#include "fuzz_input.h"
#include "model_store/blob_digest.h"
#include "model_store/manifest.h"
#include "model_store/model_name.h"
#include "model_store/modelfile.h"

namespace kvcache {
namespace {

template <typename T>
bool Refused(const Result<T>& result) {
  if (result.ok()) return false;
  Check(!result.status().message().empty());
  return true;
}

void FuzzModelfile(std::string_view text) {
  (void)IsGoTemplate(text);
  const auto file = ParseModelfile(text);
  if (Refused(file)) return;
  Check(!file->from.empty());
  // Quotes inside of a value can only be written if the value is on one line and begins otherwise.
  if (text.find("\"\"") != std::string_view::npos) return;
  const auto again = ParseModelfile(ModelfileText(*file));
  Check(again.ok() && *again == *file);
}

void FuzzManifest(std::string_view text) {
  const auto manifest = ParseManifest(text);
  if (Refused(manifest)) return;
  Check(IsBlobDigest(manifest->config.digest));
  for (const ManifestLayer& layer : manifest->layers) Check(IsBlobDigest(layer.digest));
  const auto again = ParseManifest(ManifestText(*manifest));
  Check(again.ok() && *again == *manifest);
}

void FuzzName(std::string_view text) {
  const auto name = ModelName::Parse(text);
  if (Refused(name)) return;
  for (const std::string& part : {name->host, name->space, name->model, name->tag}) {
    Check(!part.empty() && part.front() != '.' && part.find('/') == std::string::npos);
  }
  const auto again = ModelName::Parse(name->Short());
  Check(again.ok() && *again == *name);
}

void FuzzParameters(std::string_view text) {
  const auto parameters = ParseParameters(text);
  if (Refused(parameters)) return;
  Check(ParseParameters(ParametersJson(*parameters)).ok());
}

void FuzzMessages(std::string_view text) {
  const auto messages = ParseMessages(text);
  if (Refused(messages)) return;
  const auto again = ParseMessages(MessagesJson(*messages));
  Check(again.ok() && *again == *messages);
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  switch (TakeByte(&text) % 5) {
    case 0: FuzzModelfile(text); break;
    case 1: FuzzManifest(text); break;
    case 2: FuzzName(text); break;
    case 3: FuzzParameters(text); break;
    default: FuzzMessages(text); break;
  }
  return 0;
}
