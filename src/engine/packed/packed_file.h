// A file of packed weights, mapped. Its header and its table are checked when it is opened, its panels piece by piece
// when somebody asks. A file that was cut, or that the disk does not give back, is damaged.
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
#include "platform/file_descriptor.h"
#include "platform/mapped_file.h"
#include "platform/system_memory.h"

namespace kvcache::packed {

class PackedFile {
 public:
  // Says that the file is used now, and that it is in use as long as the object lives. Returns null if there is none, or
  // if it was replaced meanwhile. Errors: those of MappedFile::Open; kInvalidArgument for a file that another user owns
  // or can write to, and for what is no file; those of packed_format.h's Read, of which the file was removed. All name
  // the path.
  static Result<std::unique_ptr<PackedFile>> Open(const std::string& path,
                                                  const FileIdentity& model, std::uint64_t layout);

  // Returns null if it has no panels of this weight, or of another size.
  const std::byte* Find(const WeightKey& key, std::size_t size_bytes) const;
  PanelStore::Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const;
  // Returns whether a piece has its hash. Reads it the first time.
  bool IsSound(std::int64_t piece);

  std::uint64_t model_digest() const { return table_.digest; }
  // Removes the file, unless somebody has replaced it.
  void Remove() const;

 private:
  enum class State : std::uint8_t { kUnknown, kSound, kDamaged };

  PackedFile(MappedFile file, PackedTable table, FileDescriptor in_use);

  MappedFile file_;
  FileDescriptor in_use_;  // locked
  PackedTable table_;
  std::map<WeightKey, const WeightEntry*> entries_;
  std::vector<std::atomic<State>> states_;  // of pieces
  NeededFilePages needed_;
};

// The file behind a descriptor, which stays open meanwhile. What cannot be read is kCorrupt.
PackedSource SourceOf(int fd, std::uint64_t bytes);
// Returns whether a PackedFile of any process has the file. REQUIRES: `fd` is open for writing.
bool IsInUse(int fd);

}  // namespace kvcache::packed
