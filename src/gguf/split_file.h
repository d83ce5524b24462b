// The names of the files of a split model:
//
//   NAME-00001-of-00003.gguf   parts, numbered from 1; any of them means the model
//   A,B,C                      parts in their order; B and C lie in A's folder. The store of models
//                              names files by their contents, so nothing else tells their order
//
// Each part has the keys split.no (from 0), split.count and split.tensors.count (of all parts).
//
// Thread safety: free functions.
// Source: llama.cpp's gguf-split.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

struct SplitName {
  std::string prefix;  // with the folder
  int part = 0;        // from 1
  int count = 0;

  // Returns the path of a part.
  std::string Path(int number) const;
};

// Returns nothing for a name of another form, or a part that is not 1 to count.
std::optional<SplitName> ParseSplitName(std::string_view path);

// Returns the files that a path means, in order: one, unless its name has one of the forms above. A
// file that exists with a comma in its name is one file.
std::vector<std::string> PartPaths(const std::string& path);

// Returns the path that means these files of one folder. The reverse of PartPaths.
std::string JoinedPath(const std::vector<std::string>& paths);

// Returns whether a key tells how a model is split.
bool IsSplitKey(std::string_view key);

}  // namespace kvcache
