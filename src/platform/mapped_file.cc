#include "platform/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/file_descriptor.h"
#include "platform/mapped_file_faults.h"
#include "platform/mapped_ranges.h"
#include "platform/os_error.h"

namespace kvcache {
namespace {

// Advises over the whole pages inside [begin, end), or over all that it touches.
enum class Pages { kInside, kTouched };

void Advise(std::span<const std::byte> range, Pages pages, int advice) {
  if (range.empty()) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  auto end = begin + range.size();
  begin = pages == Pages::kInside ? (begin + page - 1) / page * page : begin / page * page;
  end = pages == Pages::kInside ? end / page * page : (end + page - 1) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

FileIdentity IdentityOf(const struct stat& info) {
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .bytes = static_cast<std::uint64_t>(info.st_size),
          .modified_ns = nanoseconds(info.st_mtim),
          .changed_ns = nanoseconds(info.st_ctim)};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // A pipe without a writer would block the open itself.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) return OsError("open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return OsError("read the size of", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument(StrCat("cannot open ", path, ": it is ",
                                  S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"));
  }
  const auto size_bytes = static_cast<std::size_t>(info.st_size);
  if (size_bytes == 0) return MappedFile(path, nullptr, 0);
  void* data = mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return OsError("map", path, errno);
  MappedFile file(path, static_cast<const std::byte*>(data), size_bytes);
  file.identity_ = IdentityOf(info);
  AddMappedRange(file.bytes(), path);
  NoteMapped(file.bytes());
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(identity_, other.identity_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  RemoveMappedRange(bytes());
  NoteUnmapped(bytes());
  munmap(const_cast<std::byte*>(data_), size_bytes_);
}

void MappedFile::WillNeed(std::span<const std::byte> range) const {
  if (data_ != nullptr) Advise(range, Pages::kTouched, MADV_WILLNEED);
}

void MappedFile::Drop(std::span<const std::byte> range) const {
  if (data_ != nullptr) Advise(range, Pages::kInside, MADV_DONTNEED);
}

}  // namespace kvcache
