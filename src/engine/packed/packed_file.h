// A file of packed weights, mapped. Its header and its table are checked when it is opened, its panels piece by piece
// when somebody asks.
//
// Thread safety: const calls and IsSound from any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/packed/packed_format.h"
#include "kvcache/panel_store.h"
#include "kvcache/status.h"
#include "platform/mapped_file.h"
#include "platform/system_memory.h"

namespace kvcache::packed {

class PackedFile {
 public:
  // Errors: those of MappedFile::Open and packed_format.h's Read, and kInvalidArgument for a file that another user
  // owns or can write to; all name the path.
  static Result<std::unique_ptr<PackedFile>> Open(const std::string& path,
                                                  const FileIdentity& model, std::uint64_t layout);

  // Returns null if it has no panels of this weight, or of another size.
  const std::byte* Find(const WeightKey& key, std::size_t size_bytes) const;
  PanelStore::Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const;
  // Returns whether a piece has its hash. Reads it the first time.
  bool IsSound(std::int64_t piece);

  std::uint64_t model_digest() const { return table_.digest; }
  const FileIdentity& identity() const { return file_.identity(); }

 private:
  enum class State : std::uint8_t { kUnknown, kSound, kDamaged };

  PackedFile(MappedFile file, PackedTable table);

  MappedFile file_;
  PackedTable table_;
  std::map<WeightKey, const WeightEntry*> entries_;
  std::vector<std::atomic<State>> states_;  // of pieces
  NeededFilePages needed_;
};

}  // namespace kvcache::packed
