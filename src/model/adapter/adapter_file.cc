#include "model/adapter/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

// Far above any adapter.
constexpr std::int64_t kMaxAdapterRank = 1 << 16;
constexpr double kMaxAlpha = 1e9;
constexpr std::string_view kSuffixA = ".lora_a";
constexpr std::string_view kSuffixB = ".lora_b";

std::string DimsText(const GgufTensor& tensor) {
  std::string text;
  for (int i = 0; i < std::max(tensor.rank, 2); ++i) {
    text += StrCat(i == 0 ? "" : ", ", tensor.dims[static_cast<std::size_t>(i)]);
  }
  return "[" + text + "]";
}

// Returns kCorrupt with the first value that is no finite number.
Status CheckValues(const GgufTensor& tensor) {
  constexpr std::int64_t kPiece = 1 << 14;  // values
  const GgmlTypeInfo& type = *tensor.type;
  if (!type.dtype) {
    return Unsupported(
        StrCat("tensor ", Quoted(tensor.name), " has type ", type.name, ", which is not read"));
  }
  const std::int64_t piece = kPiece / type.block_size * type.block_size;
  std::vector<float> values;
  for (std::int64_t at = 0; at < tensor.elements(); at += piece) {
    const std::int64_t count = std::min(piece, tensor.elements() - at);
    values.resize(static_cast<std::size_t>(count));
    const auto begin = static_cast<std::size_t>(at / type.block_size * type.block_bytes);
    const auto size = static_cast<std::size_t>(count / type.block_size * type.block_bytes);
    KVCACHE_RETURN_IF_ERROR(Dequantize(*type.dtype, tensor.bytes.subspan(begin, size), values)
                                .WithContext(StrCat("tensor ", Quoted(tensor.name))));
    const auto wrong = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
    if (wrong == values.end()) continue;
    return Corrupt(StrCat("tensor ", Quoted(tensor.name), " has the value ", *wrong, " at ",
                          at + (wrong - values.begin()), "; all must be finite numbers"));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<AdapterFile>> AdapterFile::Open(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(auto file, GgufFile::Open(path));
  return Read(std::move(file));
}

Result<std::unique_ptr<AdapterFile>> AdapterFile::Parse(std::span<const std::byte> bytes,
                                                        std::string path) {
  KVCACHE_ASSIGN_OR_RETURN(auto file, GgufFile::Parse(bytes, std::move(path)));
  return Read(std::move(file));
}

Result<std::unique_ptr<AdapterFile>> AdapterFile::Read(std::unique_ptr<GgufFile> file) {
  std::unique_ptr<AdapterFile> adapter(new AdapterFile(std::move(file)));
  Status status = adapter->ReadKeys();
  if (status.ok()) status = adapter->ReadPairs();
  if (!status.ok()) return std::move(status).WithContext(adapter->path());
  Sha256 digest;
  for (const GgufPart& part : adapter->file_->parts()) digest.Add(part.bytes);
  adapter->digest_ = digest.Finish();
  return adapter;
}

Status AdapterFile::ReadKeys() {
  KVCACHE_ASSIGN_OR_RETURN(const auto kind, file_->GetStringOr("general.type", ""));
  if (kind != "adapter") {
    return InvalidArgument(
        StrCat("general.type is ", Quoted(kind), "; the file of an adapter says 'adapter'"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto type, file_->GetString("adapter.type"));
  if (type != "lora") {
    return Unsupported(StrCat("adapter.type is ", Quoted(type), "; must be 'lora'"));
  }
  if (file_->Find("adapter.alora.invocation_tokens") != nullptr) {
    return Unsupported(
        "adapter.alora.invocation_tokens: adapters that begin at certain tokens (aLoRA) are not "
        "supported");
  }
  static constexpr std::string_view kKnown[] = {
      "adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"};
  for (const GgufEntry& entry : file_->entries()) {
    if (!std::string_view(entry.key).starts_with("adapter.")) continue;
    if (std::ranges::find(kKnown, std::string_view(entry.key)) != std::end(kKnown)) continue;
    return Unsupported(StrCat("key ", Quoted(entry.key), " of an adapter is unknown"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto architecture, file_->GetString("general.architecture"));
  architecture_ = architecture;
  KVCACHE_ASSIGN_OR_RETURN(alpha_, file_->GetFloatOr("adapter.lora.alpha", 0.0));
  if (alpha_ >= 0.0 && alpha_ <= kMaxAlpha) return Status::Ok();
  return Corrupt(StrCat("adapter.lora.alpha is ", alpha_, "; must be from 0 to ", kMaxAlpha));
}

Status AdapterFile::ReadPairs() {
  std::map<std::string, AdapterPair, std::less<>> pairs;
  for (const GgufTensor& tensor : file_->tensors()) {
    const bool is_a = tensor.name.ends_with(kSuffixA);
    if (!is_a && !tensor.name.ends_with(kSuffixB)) {
      return Unsupported(StrCat("tensor ", Quoted(tensor.name), " is no ", kSuffixA, " and no ",
                                kSuffixB, ": adapters change matrices only"));
    }
    const std::string base(tensor.name.substr(0, tensor.name.size() - kSuffixA.size()));
    AdapterPair& pair = pairs[base];
    pair.tensor = base;
    (is_a ? pair.a : pair.b) = &tensor;
  }
  if (pairs.empty()) return Corrupt("the adapter has no tensors");
  for (auto& [name, pair] : pairs) {
    if (pair.a == nullptr || pair.b == nullptr) {
      return Corrupt(StrCat("tensor ",
                            Quoted(name + std::string(pair.a == nullptr ? kSuffixA : kSuffixB)),
                            " is missing: its pair has one half"));
    }
    KVCACHE_RETURN_IF_ERROR(CheckPair(pair));
    pairs_.push_back(std::move(pair));
  }
  return Status::Ok();
}

Status AdapterFile::CheckPair(AdapterPair& pair) {
  const GgufTensor& a = *pair.a;
  const GgufTensor& b = *pair.b;
  pair.rank = b.dims[0];
  const std::int64_t rows = pair.tensor == kEmbeddingTensor ? a.dims[0] : a.dims[1];
  const bool match = rows == pair.rank && a.dims[2] == b.dims[2];
  if (!match || a.rank > 3 || b.rank > 3) {
    return Corrupt(StrCat("tensors ", Quoted(a.name), " ", DimsText(a), " and ", Quoted(b.name),
                          " ", DimsText(b), " do not fit each other: they must be ",
                          pair.tensor == kEmbeddingTensor
                              ? "[r, vocabulary] and [r, hidden size]"
                              : "[inputs, r] and [r, outputs], or stacks of as many"));
  }
  if (pair.rank < 1 || pair.rank > kMaxAdapterRank) {
    return Corrupt(StrCat("tensor ", Quoted(b.name), " has rank ", pair.rank,
                          "; must be from 1 to ", kMaxAdapterRank));
  }
  KVCACHE_RETURN_IF_ERROR(CheckValues(a));
  return CheckValues(b);
}

std::int64_t AdapterFile::max_rank() const {
  std::int64_t max = 0;
  for (const AdapterPair& pair : pairs_) max = std::max(max, pair.rank);
  return max;
}

}  // namespace kvcache
