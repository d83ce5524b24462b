// The hub's list of a repository: JSON with the fields "sha" (the revision) and "siblings" (the files).
//
// Thread safety: values and free functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "pull/hub_files.h"

namespace kvcache::pull {

struct HubList {
  std::string revision;  // empty: the list has none
  std::vector<HubFile> files;
};

inline constexpr std::size_t kMaxHubFiles = 10'000;  // .gguf files of one repository

// Reads the list, and keeps its .gguf files alone: a list has at most a few hundred bytes of memory for each of these, and
// none for all the rest. Errors: kCorrupt: another text, or a file without a name, with a path that leaves the repository, or
// with a size that no file has; kUnsupported: more files.
Result<HubList> ParseHubList(std::string_view text);

}  // namespace kvcache::pull
