#include "engine/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/sha256.h"
#include "base/strings.h"

namespace kvcache {
namespace {

Status CheckScale(float scale, const std::string& adapter) {
  if (std::abs(scale) <= kMaxAdapterScale) return Status::Ok();  // a NaN is not
  return InvalidArgument(StrCat("the scale of ", adapter, " is ", scale, "; must be from -",
                                kMaxAdapterScale, " to ", kMaxAdapterScale));
}

}  // namespace

Status EngineAdapters::Open(std::span<const EngineAdapter> adapters, Model& model) {
  for (const EngineAdapter& adapter : adapters) {
    KVCACHE_RETURN_IF_ERROR(CheckScale(adapter.scale, adapter.path));
    Opened opened{.image = adapter.image, .file = nullptr};
    auto file = adapter.image != nullptr ? AdapterFile::Parse(*adapter.image, adapter.path)
                                         : AdapterFile::Open(adapter.path);
    if (!file.ok()) return std::move(file).TakeStatus();
    opened.file = std::move(file).value();
    KVCACHE_RETURN_IF_ERROR(model.AddAdapter(*opened.file).WithContext(adapter.path));
    infos_.push_back({.path = adapter.path,
                      .digest = HexText(opened.file->digest()),
                      .bytes = static_cast<std::int64_t>(opened.file->size_bytes()),
                      .pairs = std::ssize(opened.file->pairs()),
                      .max_rank = opened.file->max_rank(),
                      .alpha = opened.file->alpha(),
                      .scale = adapter.scale});
    opened_.push_back(std::move(opened));
  }
  return Status::Ok();
}

Status EngineAdapters::Reserve(int sequences, int batch) {
  if (opened_.empty()) return Status::Ok();
  return Guarded("no memory for the adapters of sequences", [&] {
    of_sequence_.resize(static_cast<std::size_t>(sequences));
    for (auto& uses : of_sequence_) uses.reserve(opened_.size());
    of_token_.reserve(static_cast<std::size_t>(batch));
  });
}

Result<std::vector<AdapterUse>> EngineAdapters::Normal(AdapterUses uses) const {
  std::vector<AdapterUse> normal;
  std::vector<bool> is_used(opened_.size());
  for (const AdapterUse& use : uses) {
    if (use.adapter < 0 || use.adapter >= std::ssize(opened_)) {
      return InvalidArgument(StrCat("there is no adapter ", use.adapter, "; the model has ",
                                    opened_.size(),
                                    opened_.empty() ? "" : ", with numbers from 0 on"));
    }
    const auto index = static_cast<std::size_t>(use.adapter);
    if (is_used[index]) return InvalidArgument(StrCat("adapter ", use.adapter, " is named twice"));
    is_used[index] = true;
    KVCACHE_RETURN_IF_ERROR(CheckScale(use.scale, StrCat("adapter ", use.adapter)));
    if (use.scale != 0.0f) normal.push_back(use);
  }
  std::ranges::sort(normal, {}, &AdapterUse::adapter);
  return normal;
}

Status EngineAdapters::Set(SequenceId sequence, AdapterUses uses) {
  const auto index = static_cast<std::size_t>(Index(sequence));
  if (index >= of_sequence_.size()) {  // also without adapters
    if (uses.empty()) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(Normal(uses).status());
    return InvalidArgument(
        StrCat("sequence ", index, " is not one of the engine's ", of_sequence_.size()));
  }
  return Guarded("no memory for the adapters of a sequence", [&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(of_sequence_[index], Normal(uses));
    return Status::Ok();
  });
}

AdapterUses EngineAdapters::Of(SequenceId sequence) const {
  const auto index = static_cast<std::size_t>(Index(sequence));
  return index < of_sequence_.size() ? AdapterUses(of_sequence_[index]) : AdapterUses();
}

std::uint64_t EngineAdapters::SaltOf(std::uint64_t salt, AdapterUses uses) const {
  if (uses.empty()) return salt;
  Sha256 hash;
  const auto add = [&](const auto& value) { hash.Add(std::as_bytes(std::span(&value, 1))); };
  add(salt);
  for (const AdapterUse& use : uses) {
    hash.Add(opened_[static_cast<std::size_t>(use.adapter)].file->digest());
    add(use.scale);
  }
  const Sha256Hash sum = hash.Finish();
  std::uint64_t salted = 0;
  std::memcpy(&salted, sum.data(), sizeof(salted));
  return salted | 1;  // 0 is the salt of texts without users and adapters
}

std::int64_t EngineAdapters::HeldBytes() const {
  std::int64_t bytes = 0;
  for (const Opened& opened : opened_) bytes += opened.image ? std::ssize(*opened.image) : 0;
  return bytes;
}

std::span<const AdapterUses> EngineAdapters::OfTokens(std::span<const SequenceId> sequences) {
  of_token_.clear();
  const auto is_used = [&](SequenceId sequence) { return !Of(sequence).empty(); };
  if (of_sequence_.empty() || std::ranges::none_of(sequences, is_used)) return {};
  for (const SequenceId sequence : sequences) of_token_.push_back(Of(sequence));
  return of_token_;
}

}  // namespace kvcache
