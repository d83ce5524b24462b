#include "storage/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/strings.h"
#include "platform/os_error.h"
#include "store/content_hash.h"
#include "store/object_format.h"

namespace kvcache::bench {
namespace {

namespace fs = std::filesystem;

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) (void)close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The digits of all keys here are the file's name; fingerprints are equal.
bool ParseName(const std::string& name, ObjectId& id) {
  if (name.size() != 64 + 3) return false;
  for (std::size_t i = 0; i < id.key.bytes.size(); ++i) {
    id.key.bytes[i] = static_cast<std::byte>(std::stoi(name.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory,
                                                   std::int64_t budget_bytes, Sync sync) {
  std::unique_ptr<FileStore> store(new FileStore(directory, budget_bytes, sync));
  KVCACHE_RETURN_IF_ERROR(store->ReadDirectory());
  return store;
}

std::string FileStore::FileOf(const ObjectId& id) const {
  const std::string name = store::HexText(id.key);
  return StrCat(directory_, "/", name.substr(0, 2), "/", name, ".kv");
}

// The order of use is that of the files' times.
Status FileStore::ReadDirectory() {
  std::vector<std::pair<std::int64_t, std::pair<ObjectId, std::int64_t>>> found;
  fs::create_directories(directory_);
  for (int i = 0; i < 256; ++i) {
    const std::string folder = StrCat(directory_, "/", HexText(std::uint64_t(i)).substr(14));
    fs::create_directory(folder);
    for (const auto& entry : fs::directory_iterator(folder)) {
      ObjectId id;
      struct stat info {};
      if (!ParseName(entry.path().filename().string(), id)) continue;
      if (stat(entry.path().c_str(), &info) != 0) continue;
      const std::int64_t time =
          std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
      found.push_back({time, {id, info.st_size}});
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, object] : found) Add(object.first, object.second);
  return Status::Ok();
}

void FileStore::Add(const ObjectId& id, std::int64_t bytes) {
  order_.push_back(id);
  objects_[id] = {bytes, std::prev(order_.end())};
  bytes_ += bytes;
}

Status FileStore::Get(const ObjectId& id, const Reader& reader) {
  const auto object = objects_.find(id);
  if (object == objects_.end()) return {StatusCode::kNotFound, "there is no such object"};
  const std::string path = FileOf(id);
  const File file(path, O_RDONLY);
  buffer_.resize(std::max(buffer_.size(), static_cast<std::size_t>(object->second.bytes)));
  const auto size = static_cast<std::size_t>(object->second.bytes);
  for (std::size_t done = 0; done < size;) {
    const ssize_t count = read(file.fd(), buffer_.data() + done, size - done);
    if (count <= 0) return OsError("read", path, errno);
    done += static_cast<std::size_t>(count);
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto payload,
                           store::OpenEnvelope(id, std::span(buffer_).first(size)));
  Touch(std::span(&id, 1));
  return reader(payload);
}

Status FileStore::Put(const ObjectId& id, std::span<const std::byte> payload) {
  const store::Envelope envelope = store::MakeEnvelope(id, payload);
  const auto bytes = static_cast<std::int64_t>(envelope.size() + payload.size());
  KVCACHE_RETURN_IF_ERROR(Remove(id));
  while (bytes_ + bytes > budget_bytes_ && !order_.empty()) {
    ++evicted_;
    const ObjectId oldest = order_.front();
    KVCACHE_RETURN_IF_ERROR(Remove(oldest));
  }
  const std::string path = FileOf(id);
  const std::string partial = StrCat(path, ".", getpid());
  {
    const File file(partial, O_WRONLY | O_CREAT | O_TRUNC);
    std::array<iovec, 2> parts = {iovec{const_cast<std::byte*>(envelope.data()), envelope.size()},
                                  iovec{const_cast<std::byte*>(payload.data()), payload.size()}};
    if (writev(file.fd(), parts.data(), 2) != bytes) return OsError("write", partial, errno);
    if (sync_ == Sync::kEach && fdatasync(file.fd()) != 0) return OsError("sync", partial, errno);
  }
  if (rename(partial.c_str(), path.c_str()) != 0) return OsError("rename", partial, errno);
  Add(id, bytes);
  return Status::Ok();
}

void FileStore::Touch(std::span<const ObjectId> ids) {
  for (const ObjectId& id : ids) {
    const auto object = objects_.find(id);
    if (object != objects_.end()) order_.splice(order_.end(), order_, object->second.place);
  }
}

Status FileStore::Remove(const ObjectId& id) {
  const auto object = objects_.find(id);
  if (object == objects_.end()) return Status::Ok();
  (void)unlink(FileOf(id).c_str());
  bytes_ -= object->second.bytes;
  order_.erase(object->second.place);
  objects_.erase(object);
  return Status::Ok();
}

Result<std::vector<StoredObject>> FileStore::List() {
  std::vector<StoredObject> all;
  for (const ObjectId& id : order_) {
    all.push_back({.id = id,
                   .payload_bytes =
                       objects_.at(id).bytes - static_cast<std::int64_t>(store::kEnvelopeBytes)});
  }
  return all;
}

Result<StoreStats> FileStore::Usage() {
  return StoreStats{.objects = std::ssize(order_),
                    .payload_bytes = bytes_ - std::ssize(order_) *
                                                  static_cast<std::int64_t>(store::kEnvelopeBytes),
                    .held_bytes = bytes_,
                    .budget_bytes = budget_bytes_,
                    .evicted = evicted_};
}

}  // namespace kvcache::bench
