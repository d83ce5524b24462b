#include "platform/output/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "platform/os_error.h"
#include "platform/output/output_target.h"

namespace kvcache {

Result<OutputFile> OutputFile::Create(const std::string& path, std::uint64_t size_bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const OutputTarget target, ResolveOutput(path));
  OutputFile file(path);
  if (target.exists && !target.regular) {
    file.fd_ = FileDescriptor(open(target.path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!file.fd_.is_open()) return OsError("open", path, errno);
    return file;
  }
  KVCACHE_ASSIGN_OR_RETURN(file.file_, NewFile::Create(path, size_bytes));
  return file;
}

Status OutputFile::Write(std::span<const std::byte> bytes) {
  if (file_ != nullptr) {
    KVCACHE_RETURN_IF_ERROR(file_->WriteAt(written_, bytes));
    written_ += bytes.size();
    return Status::Ok();
  }
  while (!bytes.empty()) {
    const ssize_t count = write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0) return OsError("write to", path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return Status::Ok();
}

Status OutputFile::Commit() {
  if (file_ != nullptr) return file_->Commit();
  const int error = fd_.Close();
  return error == 0 ? Status::Ok() : OsError("close", path_, error);
}

}  // namespace kvcache
