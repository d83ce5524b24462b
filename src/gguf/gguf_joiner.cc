// Opens the parts of a split model and makes one GgufFile of them.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "gguf/split_file.h"

namespace kvcache {
namespace {

constexpr std::string_view kNumber = "split.no";
constexpr std::string_view kCount = "split.count";
constexpr std::string_view kTensors = "split.tensors.count";

// What a file says about itself. A file without the keys is whole.
struct SplitKeys {
  std::uint64_t number = 0;
  std::uint64_t count = 1;
};

Result<SplitKeys> KeysOf(const GgufFile& file) {
  SplitKeys keys;
  KVCACHE_ASSIGN_OR_RETURN(keys.number, file.GetUintOr(kNumber, 0));
  KVCACHE_ASSIGN_OR_RETURN(keys.count, file.GetUintOr(kCount, 1));
  if (keys.count == 0) keys.count = 1;  // some writers mark whole files so
  if (keys.number < keys.count) return keys;
  return Corrupt(
      StrCat(kNumber, " is ", keys.number, "; must be less than ", kCount, ", ", keys.count));
}

bool AreEqual(const GgufEntry& a, const GgufEntry& b) {
  return a.type == b.type && a.element == b.element && std::ranges::equal(a.bytes, b.bytes);
}

}  // namespace

class GgufJoiner {
 public:
  // Opens what `path` means.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path) {
    const std::vector<std::string> paths = PartPaths(path);
    const auto named = std::ranges::find(paths, path);
    // The file that is named, so that a file which says that it is whole is taken alone.
    const std::string& one = named == paths.end() ? paths.front() : *named;
    KVCACHE_ASSIGN_OR_RETURN(auto file, GgufFile::OpenPart(one));
    KVCACHE_ASSIGN_OR_RETURN(const SplitKeys keys, In(*file, KeysOf(*file)));
    if (keys.count == 1 && named != paths.end()) return file;
    if (keys.count != paths.size()) return WrongCount(*file, keys, paths.size());
    if (one != paths.front()) {
      KVCACHE_ASSIGN_OR_RETURN(file, OpenNamed(paths, 0));
    }
    return Join(std::move(file), paths);
  }

 private:
  template <typename T>
  static Result<T> In(const GgufFile& file, Result<T> result) {
    if (result.ok()) return result;
    return std::move(result).TakeStatus().WithContext(file.path());
  }

  static Status WrongCount(const GgufFile& file, const SplitKeys& keys, std::size_t count) {
    if (count == 1) {
      return Corrupt(StrCat(file.path(), " is part ", keys.number + 1, " of ", keys.count,
                            " of a split model, as ", kNumber, " and ", kCount,
                            " say; parts are found by names of the form NAME-00001-of-00003.gguf"));
    }
    return Corrupt(StrCat(file.path(), ": ", kCount, " is ", keys.count, "; must be ", count,
                          ", the number of parts in its name"));
  }

  static Result<std::unique_ptr<GgufFile>> OpenNamed(const std::vector<std::string>& paths,
                                                     std::size_t index) {
    auto file = GgufFile::OpenPart(paths[index]);
    if (file.ok()) return file;
    Status status = std::move(file).TakeStatus();
    return Status(status.code(), StrCat(status.message(), "; it is part ", index + 1, " of ",
                                        paths.size(), " of a split model, which needs all parts"));
  }

  static Result<std::unique_ptr<GgufFile>> Join(std::unique_ptr<GgufFile> first,
                                                const std::vector<std::string>& paths) {
    KVCACHE_RETURN_IF_ERROR(CheckPlace(*first, 0, paths.size()));
    for (std::size_t i = 1; i < paths.size(); ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const auto part, OpenNamed(paths, i));
      KVCACHE_RETURN_IF_ERROR(CheckPlace(*part, i, paths.size()));
      KVCACHE_RETURN_IF_ERROR(CheckModel(*first, *part));
      Take(*first, *part);
    }
    KVCACHE_RETURN_IF_ERROR(Index(*first));
    KVCACHE_RETURN_IF_ERROR(CheckTensors(*first).WithContext(first->path()));
    return first;
  }

  static Status CheckPlace(const GgufFile& part, std::size_t index, std::size_t count) {
    KVCACHE_ASSIGN_OR_RETURN(const SplitKeys keys, In(part, KeysOf(part)));
    if (keys.count != count) return WrongCount(part, keys, count);
    if (keys.number == index) return Status::Ok();
    return Corrupt(StrCat(part.path(), ": ", kNumber, " is ", keys.number, "; must be ", index,
                          ", since it is part ", index + 1));
  }

  // Keys that both parts have must be equal: else they belong to two models.
  static Status CheckModel(const GgufFile& first, const GgufFile& part) {
    for (const GgufEntry& entry : part.entries()) {
      if (entry.key == kNumber || entry.key == "general.alignment") continue;
      const GgufEntry* const same = first.Find(entry.key);
      if (same == nullptr || AreEqual(*same, entry)) continue;
      return Corrupt(StrCat(part.path(), ": its ", Quoted(entry.key), " is not that of ",
                            first.path(), "; it is a part of another model"));
    }
    return Status::Ok();
  }

  // Adds the tensors of `part` to those of `file`, and the mapping that holds their bytes.
  static void Take(GgufFile& file, GgufFile& part) {
    for (GgufTensor& tensor : part.tensors_) {
      tensor.part = file.parts_.size();
      file.tensors_.push_back(tensor);
    }
    file.parts_.push_back(std::move(part.parts_.front()));
  }

  static Status Index(GgufFile& file) {
    auto& order = file.tensors_by_name_;
    const auto tensor_at = [&](std::uint32_t i) -> const GgufTensor& { return file.tensors_[i]; };
    const auto name_of = [&](std::uint32_t i) { return tensor_at(i).name; };
    order.resize(file.tensors_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, {}, name_of);
    const auto twice = std::ranges::adjacent_find(order, {}, name_of);
    if (twice == order.end()) return Status::Ok();
    const auto path_of = [&](std::uint32_t i) { return file.parts_[tensor_at(i).part].path; };
    return Corrupt(StrCat("tensor ", Quoted(name_of(*twice)), " occurs twice, in ",
                          path_of(std::min(twice[0], twice[1])), " and ",
                          path_of(std::max(twice[0], twice[1]))));
  }

  static Status CheckTensors(const GgufFile& file) {
    const std::size_t found = file.tensors().size();
    KVCACHE_ASSIGN_OR_RETURN(const std::uint64_t said, file.GetUintOr(kTensors, found));
    if (said == found) return Status::Ok();
    return Corrupt(StrCat(kTensors, " is ", said, ", but the ", file.parts().size(), " parts have ",
                          found, " tensors"));
  }
};

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  return GgufJoiner::Open(path);
}

}  // namespace kvcache
