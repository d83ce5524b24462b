// The adapters of an engine: their files, what each sequence has, and the salts of their texts.
//
// Thread safety: Set, Of and OfTokens: the engine's thread. infos, Normal and SaltOf: any thread, after Reserve.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"
#include "kvcache_engine/adapter.h"
#include "model/adapter/adapter_file.h"
#include "model/model.h"

namespace kvcache {

class EngineAdapters {
 public:
  // Reads the files and gives them to the model. Errors begin with the adapter's path: those of AdapterFile::Open and
  // Model::AddAdapter.
  Status Open(std::span<const EngineAdapter> adapters, Model& model);
  // Allocates what the engine's calls below need. Errors: kOutOfMemory.
  Status Reserve(int sequences, int batch);

  std::span<const AdapterInfo> infos() const { return infos_; }
  Result<std::vector<AdapterUse>> Normal(AdapterUses uses) const;
  Status Set(SequenceId sequence, AdapterUses uses);
  AdapterUses Of(SequenceId sequence) const;
  std::uint64_t SaltOf(std::uint64_t salt, AdapterUses uses) const;
  std::int64_t HeldBytes() const;  // of files that are no mapped ones

  // Returns what tokens of these sequences have [batch], valid until the next call; empty: none has any.
  std::span<const AdapterUses> OfTokens(std::span<const SequenceId> sequences);

 private:
  struct Opened {
    std::shared_ptr<const std::vector<std::byte>> image;  // that `file` refers to, or null
    std::unique_ptr<AdapterFile> file;
  };

  std::vector<Opened> opened_;
  std::vector<AdapterInfo> infos_;
  std::vector<std::vector<AdapterUse>> of_sequence_;
  std::vector<AdapterUses> of_token_;  // scratch [batch]
};

}  // namespace kvcache
