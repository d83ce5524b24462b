#include "engine/packed/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/huge_pages.h"
#include "platform/mapped_file_faults.h"
#include "platform/os_error.h"

namespace kvcache::packed {
namespace {

// Who can write a file of packed weights decides what the model says.
Status CheckOwn(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return InvalidArgument("it is not a regular file");
  const bool is_own = info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return is_own ? Status::Ok()
                : InvalidArgument("it belongs to another user, or other users can write to it");
}

void RemoveIfSame(const std::string& path, std::uint64_t device, std::uint64_t inode) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && info.st_dev == device && info.st_ino == inode) {
    (void)unlink(path.c_str());
  }
}

}  // namespace

PackedSource SourceOf(int fd, std::uint64_t bytes) {
  const auto read = [fd](std::uint64_t at, std::span<std::byte> into) {
    while (!into.empty()) {
      const ssize_t count = pread(fd, into.data(), into.size(), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return Corrupt(StrCat("it has no bytes at ", at));
      at += static_cast<std::uint64_t>(count);
      into = into.subspan(static_cast<std::size_t>(count));
    }
    return Status::Ok();
  };
  return {bytes, read};
}

bool IsInUse(int fd) {
  return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

Result<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& path,
                                                     const FileIdentity& model,
                                                     std::uint64_t layout) {
  // A pipe without a writer would block the open itself.
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open() && errno == ENOENT) return std::unique_ptr<PackedFile>();
  if (!fd.is_open()) return OsError("open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return OsError("read the owner of", path, errno);
  KVCACHE_RETURN_IF_ERROR(CheckOwn(info).WithContext(path));
  (void)flock(fd.get(), LOCK_SH | LOCK_NB);  // a file system without locks: it may be evicted
  auto table = Read(SourceOf(fd.get(), static_cast<std::uint64_t>(info.st_size)), model, layout);
  if (!table.ok()) {
    RemoveIfSame(path, info.st_dev, info.st_ino);
    return std::move(table).TakeStatus().WithContext(path);
  }
  auto file = MappedFile::Open(path);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kNotFound) return std::unique_ptr<PackedFile>();
    return std::move(file).TakeStatus();
  }
  const FileIdentity& mapped = file->identity();
  const bool is_same = mapped.device == info.st_dev && mapped.inode == info.st_ino &&
                       mapped.bytes == static_cast<std::uint64_t>(info.st_size);
  if (!is_same) return std::unique_ptr<PackedFile>();
  (void)futimens(fd.get(), nullptr);
  AskForHugePages(file->bytes());
  return std::unique_ptr<PackedFile>(
      new PackedFile(std::move(*file), std::move(*table), std::move(fd)));
}

PackedFile::PackedFile(MappedFile file, PackedTable table, FileDescriptor in_use)
    : file_(std::move(file)),
      in_use_(std::move(in_use)),
      table_(std::move(table)),
      states_(table_.sums.size()),
      needed_(static_cast<std::int64_t>(file_.bytes().size())) {
  for (const WeightEntry& entry : table_.entries) entries_.emplace(entry.key, &entry);
}

void PackedFile::Remove() const {
  RemoveIfSame(file_.path(), file_.identity().device, file_.identity().inode);
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
    std::uint64_t sum = 0;
    const bool is_read = RunGuarded([&] { sum = HashOfPiece(file_.bytes().subspan(begin, size)); });
    state.store(is_read && sum == table_.sums[index] ? State::kSound : State::kDamaged);
  }
  return state.load() == State::kSound;
}

}  // namespace kvcache::packed
