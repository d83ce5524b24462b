#include "engine/persist/store_fingerprint.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

#include "base/arithmetic/version.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "gguf/gguf.h"
#include "kvcache/cpu_backend.h"
#include "model/layer_memory.h"
#include "platform/settled_file.h"
#include "store/content_hash.h"

namespace kvcache {
namespace {

template <class T>
void Append(std::vector<std::byte>& bytes, const T& value) {
  const auto added = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), added.begin(), added.end());
}

// Stores may be shared: other machines have other files under the same numbers.
std::string MachineName() {
  char name[256] = "";
  (void)gethostname(name, sizeof(name) - 1);
  std::string id;
  std::ifstream("/etc/machine-id") >> id;
  return StrCat(name, "\n", id);
}

// The names that hashes of files are kept under.
Result<ObjectId> IdOf(const FileIdentity& identity) {
  constexpr std::string_view kSpace = "kvcache: hashes of model files, version 2";
  ObjectId id;
  KVCACHE_ASSIGN_OR_RETURN(id.fingerprint, store::StoreHashOf(std::as_bytes(std::span(kSpace))));
  std::vector<std::byte> key;
  Append(key, identity);
  const std::string machine = MachineName();
  const auto name = std::as_bytes(std::span(machine));
  key.insert(key.end(), name.begin(), name.end());
  KVCACHE_ASSIGN_OR_RETURN(id.key, store::StoreHashOf(key));
  return id;
}

std::string LayerText(const LayerMemory& layer) {
  return StrCat("layer ", layer.layer, " ", NameOf(layer.kind), ", heads ", layer.kv.kv_heads,
                " of ", layer.kv.k_dim, " and ", layer.kv.v_dim, layer.kv.v_in_k ? ", V in K" : "",
                ", window ", layer.window, ", chunk ", layer.chunk, ", state ", layer.state_values,
                "\n");
}

// Instruction sets with fused multiply-add give the same bits, and the portable one on x86 others
// (docs/design/exactness.md).
std::string MachineText() {
  const std::string target = CpuTargetName();
  const bool is_fused = target != "EMU128";
  return StrCat("multiply-add ", is_fused ? "fused" : "rounded twice", ", arithmetic ",
                arithmetic::kVersion, "\n");
}

// The lines of a cache's fingerprint, without those of shapes: layers get their shapes when they are first
// written.
std::string CacheText(std::string_view fingerprint) {
  std::string text;
  while (!fingerprint.empty()) {
    const std::size_t end = std::min(fingerprint.find('\n'), fingerprint.size() - 1) + 1;
    const std::string_view line = fingerprint.substr(0, end);
    if (!line.starts_with("layer ")) text += line;
    fingerprint.remove_prefix(end);
  }
  return text;
}

}  // namespace

// The hash of the hashes of the header and of each tensor.
Result<StoreHash> FileHash(const GgufFile& file) {
  std::vector<std::byte> sums;
  for (const GgufPart& part : file.parts()) Append(sums, store::FastHash(part.header()));
  for (const GgufTensor& tensor : file.tensors()) Append(sums, store::FastHash(tensor.bytes));
  return store::StoreHashOf(sums);
}

Result<StoreHash> ModelHash(const Engine& engine, Store& store) {
  const GgufFile& file = engine.file();
  const bool is_settled = IsSettled(file.identity());
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, IdOf(file.identity()));
  StoreHash hash;
  const Status known = store.Get(id, [&](std::span<const std::byte> payload) {
    if (payload.size() != hash.bytes.size()) return Corrupt("no hash");
    std::memcpy(hash.bytes.data(), payload.data(), payload.size());
    return Status::Ok();
  });
  if (known.ok() && is_settled) return hash;
  KVCACHE_ASSIGN_OR_RETURN(hash, FileHash(file));
  if (is_settled) (void)store.Put(id, hash.bytes).ok();  // else it is computed again
  return hash;
}

Result<std::string> FingerprintText(Engine& engine, const StoreHash& model) {
  const EngineOptions& options = engine.options();
  const ModelInfo& info = engine.info();
  std::string text =
      StrCat("kvcache states, version 1\nmodel ", store::HexText(model), "\narchitecture ",
             info.architecture, "\nK ", InfoOf(options.k_type).name, ", V ",
             InfoOf(options.v_type).name, "\n", MachineText());
  for (const LayerMemory& layer : info.memory) text += LayerText(layer);
  KVCACHE_ASSIGN_OR_RETURN(const std::string cache, engine.cache().snapshots()->Fingerprint());
  text += CacheText(cache);
  return text;
}

}  // namespace kvcache
