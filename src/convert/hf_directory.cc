#include "convert/hf_directory.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/bounded_json.h"
#include "platform/mapped_file.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

// Returns whether `path` lies in `folder`; both are resolved.
bool IsInside(const fs::path& path, const std::string& folder) {
  return !folder.empty() && path.string().starts_with(folder + "/");
}

bool IsPlain(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<HfDirectory> HfDirectory::Open(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(HfDirectory directory, OpenFolder(path));
  if (directory.Has("config.json")) return directory;
  return NotFound(StrCat(path,
                         ": there is no config.json; give a directory with a model in Hugging "
                         "Face's layout"));
}

Result<HfDirectory> HfDirectory::OpenAdapter(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(HfDirectory directory, OpenFolder(path));
  if (directory.Has("adapter_config.json")) return directory;
  return NotFound(
      StrCat(path, ": there is no adapter_config.json; give the directory of an adapter"));
}

Result<HfDirectory> HfDirectory::OpenFolder(const std::string& path) {
  HfDirectory directory;
  directory.path_ = path;
  std::error_code error;
  const fs::path root = fs::canonical(path, error);
  if (error || !fs::is_directory(root, error)) {
    return NotFound(StrCat(path, ": there is no such directory"));
  }
  directory.root_ = root.string();
  if (root.parent_path().filename() == "snapshots") {
    directory.blobs_ = (root.parent_path().parent_path() / "blobs").string();
  }
  return directory;
}

bool HfDirectory::Has(std::string_view name) const {
  std::error_code error;
  return fs::exists(fs::symlink_status(fs::path(root_) / name, error));
}

std::vector<std::string> HfDirectory::TemplateNames() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(root_) / kTemplates, error), end;
       !error && at != end && names.size() < 100; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<HfDirectory> HfDirectory::Folder(std::string_view name) const {
  const std::string shown = StrCat(path_, "/", name);
  if (!IsPlain(name)) {
    return InvalidArgument(
        StrCat(path_, ": ", Quoted(name), " is no plain name of a folder in the directory"));
  }
  std::error_code error;
  const fs::path resolved = fs::canonical(fs::path(root_) / name, error);
  if (error || !fs::is_directory(resolved, error)) {
    return NotFound(StrCat(shown, ": there is no such folder"));
  }
  if (!IsInside(resolved, root_)) {
    return Corrupt(StrCat(shown, ": it is a link to ", resolved.string(),
                          ", outside of the model's directory"));
  }
  HfDirectory folder;
  folder.path_ = shown;
  folder.root_ = resolved.string();
  folder.blobs_ = blobs_;
  return folder;
}

Result<std::string> HfDirectory::File(std::string_view name) const {
  std::string_view last = name;
  if (last.starts_with(StrCat(kTemplates, '/'))) last.remove_prefix(kTemplates.size() + 1);
  if (!IsPlain(last)) {
    return InvalidArgument(
        StrCat(path_, ": ", Quoted(name), " is no plain name of a file in the directory"));
  }
  const std::string shown = StrCat(path_, "/", name);
  if (!Has(name)) return NotFound(StrCat(shown, ": there is no such file"));
  std::error_code error;
  const fs::path resolved = fs::canonical(fs::path(root_) / name, error);
  if (error) return Corrupt(StrCat(shown, ": it is a link to nothing: ", error.message()));
  if (!IsInside(resolved, root_) && !IsInside(resolved, blobs_)) {
    return Corrupt(StrCat(shown, ": it is a link to ", resolved.string(),
                          ", outside of the model's directory"));
  }
  if (!fs::is_regular_file(resolved, error)) return Corrupt(shown + ": it is no regular file");
  return resolved.string();
}

Result<std::string> HfDirectory::ReadText(std::string_view name, std::size_t max_bytes) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, File(name));
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::size_t size = file.bytes().size();
  if (size > max_bytes) {
    return Corrupt(
        StrCat(path_, "/", name, ": it has ", size, " bytes; at most ", max_bytes, " are read"));
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), size);
}

Result<nlohmann::json> HfDirectory::ReadJson(std::string_view name, std::size_t max_bytes) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadText(name, max_bytes));
  auto value = ParseBoundedJson(text, max_bytes);
  if (!value.ok()) return std::move(value).TakeStatus().WithContext(StrCat(path_, "/", name));
  return value;
}

}  // namespace kvcache
