#include "convert/hf_weights.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxShards = 10000;

// Returns the name without the prefix that wraps a text model.
std::string_view WithoutPrefix(std::string_view name) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model.",
                                        "language_model.", "model.", "bert.", "roberta."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool IsLeftOut(std::string_view name) {
  static constexpr std::array<std::string_view, 8> kParts = {
      "vision_tower.", "vision_model.", "vision_embedder.", "multi_modal_projector.",
      "audio_tower.",  "embed_vision.", "embed_audio.",     "visual."};
  // Old checkpoints hold the frequencies of the rotation, which the configuration states too.
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return std::ranges::any_of(kParts, [&](auto part) { return name.starts_with(part); });
}

bool FindType(std::string_view name, GgmlType* type) {
  if (name == "F32") *type = GgmlType::kF32;
  if (name == "F16") *type = GgmlType::kF16;
  if (name == "BF16") *type = GgmlType::kBF16;
  return name == "F32" || name == "F16" || name == "BF16";
}

Status CheckShards(const json& map, const HfDirectory& directory, std::set<std::string>* shards) {
  const std::string place = StrCat(directory.path(), "/", kIndex);
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || !file.get<std::string>().ends_with(".safetensors")) {
      return Corrupt(StrCat(place, ": tensor ", Quoted(tensor),
                            " is in no file whose name ends with .safetensors"));
    }
    shards->insert(file.get<std::string>());
    if (shards->size() > kMaxShards) {
      return Corrupt(StrCat(place, ": it names more than ", kMaxShards, " files"));
    }
  }
  return Status::Ok();
}

}  // namespace

Status HfWeights::AddFile(const HfDirectory& directory, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, directory.File(name));
  auto opened = SafetensorsFile::Open(path);
  if (!opened.ok()) return std::move(opened).TakeStatus().WithContext(name);
  files_.push_back(std::move(opened).value());
  for (const SafeTensor& tensor : files_.back()->tensors()) {
    const std::string_view known = WithoutPrefix(tensor.name);
    if (IsLeftOut(known) || IsLeftOut(tensor.name)) {
      ++left_out_;
      continue;
    }
    Tensor added{.data = &tensor,
                 .where = StrCat(directory.path(), "/", name, ": tensor ", Quoted(tensor.name))};
    const auto [old, is_new] = tensors_.emplace(std::string(known), added);
    if (!is_new) {
      return Corrupt(StrCat(added.where, " is the same as ", old->second.where));
    }
  }
  return Status::Ok();
}

Status HfWeights::AddShards(const HfDirectory& directory) {
  KVCACHE_ASSIGN_OR_RETURN(const json index, directory.ReadJson(kIndex, kMaxIndexBytes));
  const std::string place = StrCat(directory.path(), "/", kIndex);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Corrupt(place + ": it has no object weight_map");
  }
  const json& map = index["weight_map"];
  std::set<std::string> shards;
  KVCACHE_RETURN_IF_ERROR(CheckShards(map, directory, &shards));
  std::map<std::string, const SafetensorsFile*> files;
  for (const std::string& shard : shards) {
    KVCACHE_RETURN_IF_ERROR(AddFile(directory, shard).WithContext(kIndex));
    files[shard] = files_.back().get();
  }
  for (const auto& [tensor, file] : map.items()) {
    if (files[file.get<std::string>()]->Find(tensor) != nullptr) continue;
    return Corrupt(
        StrCat(place, ": tensor ", Quoted(tensor), " is not in ", Quoted(file.get<std::string>())));
  }
  return Status::Ok();
}

Result<HfWeights> HfWeights::Open(const HfDirectory& directory) {
  HfWeights weights;
  weights.path_ = directory.path();
  if (directory.Has(kIndex)) {
    KVCACHE_RETURN_IF_ERROR(weights.AddShards(directory));
  } else if (directory.Has(kSingle)) {
    KVCACHE_RETURN_IF_ERROR(weights.AddFile(directory, kSingle));
  } else {
    const bool pickled =
        directory.Has("pytorch_model.bin") || directory.Has("pytorch_model.bin.index.json");
    return pickled ? Unsupported(StrCat(directory.path(),
                                        ": the weights are pickled "
                                        "(pytorch_model.bin); save them as "
                                        "safetensors"))
                   : Status(StatusCode::kNotFound, StrCat(directory.path(), ": there is neither ",
                                                          kSingle, " nor ", kIndex));
  }
  return weights;
}

Result<HfWeights::Tensor> HfWeights::Take(std::string_view name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return NotFound(StrCat(path_, ": tensor ", Quoted(name), " is missing from the weights"));
  }
  Tensor tensor = found->second;
  if (!FindType(tensor.data->type, &tensor.type)) {
    return Unsupported(
        StrCat(tensor.where, " is ", tensor.data->type, "; must be F32, F16 or BF16"));
  }
  used_.emplace(name);
  return tensor;
}

void HfWeights::LeaveOutHeads() {
  for (const auto& [name, tensor] : tensors_) {
    if (name.starts_with("mtp.") && used_.emplace(name).second) ++left_out_;
  }
}

Status HfWeights::CheckAllUsed() const {
  for (const auto& [name, tensor] : tensors_) {
    if (used_.contains(name)) continue;
    return Unsupported(tensor.where + " has no place in this architecture");
  }
  return Status::Ok();
}

}  // namespace kvcache
