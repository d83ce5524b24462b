#include "engine/packed/packed_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/huge_pages.h"

namespace kvcache::packed {
namespace {

// Who can write a file of packed weights decides what the model says.
Status CheckOwn(const std::string& path) {
  struct stat info {};
  const bool is_own = stat(path.c_str(), &info) != 0 ||
                      (info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0);
  return is_own ? Status::Ok()
                : InvalidArgument("it belongs to another user, or other users can write to it");
}

}  // namespace

Result<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& path,
                                                     const FileIdentity& model,
                                                     std::uint64_t layout) {
  KVCACHE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  KVCACHE_RETURN_IF_ERROR(CheckOwn(path).WithContext(path));
  AskForHugePages(file.bytes());
  auto table = Read(file.bytes(), model, layout);
  if (!table.ok()) return std::move(table).TakeStatus().WithContext(path);
  return std::unique_ptr<PackedFile>(new PackedFile(std::move(file), std::move(*table)));
}

PackedFile::PackedFile(MappedFile file, PackedTable table)
    : file_(std::move(file)),
      table_(std::move(table)),
      states_(table_.sums.size()),
      needed_(static_cast<std::int64_t>(file_.bytes().size())) {
  for (const WeightEntry& entry : table_.entries) entries_.emplace(entry.key, &entry);
}

const std::byte* PackedFile::Find(const WeightKey& key, std::size_t size_bytes) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second->bytes != size_bytes) return nullptr;
  return file_.bytes().data() + found->second->at;
}

PanelStore::Pieces PackedFile::PiecesOf(const std::byte* panels, std::size_t size_bytes) const {
  const auto at = static_cast<std::uint64_t>(panels - file_.bytes().data());
  const std::uint64_t end = at + size_bytes;
  return {.begin = static_cast<std::int64_t>(at / kPieceBytes) - 1,
          .end = static_cast<std::int64_t>((end + kPieceBytes - 1) / kPieceBytes) - 1};
}

bool PackedFile::IsSound(std::int64_t piece) {
  const auto index = static_cast<std::size_t>(piece);
  std::atomic<State>& state = states_[index];
  if (state.load() == State::kUnknown) {
    const std::uint64_t begin = (index + 1) * kPieceBytes;
    const std::uint64_t size = std::min(kPieceBytes, table_.end - begin);
    const bool is_sound = HashOfPiece(file_.bytes().subspan(begin, size)) == table_.sums[index];
    state.store(is_sound ? State::kSound : State::kDamaged);
  }
  return state.load() == State::kSound;
}

}  // namespace kvcache::packed
