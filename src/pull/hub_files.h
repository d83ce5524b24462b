// Which files of a hub's repository make the model that a tag names.
//
//   weights     the .gguf files whose name has the tag as a word (Q4_K_M), all parts of a split one;
//               for the tag "latest", the first of the usual quantizations that there is
//   projector   mmproj….gguf, F16 before others: its vision tower
//   draft       a .gguf file whose name has the word "draft"
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::pull {

struct HubFile {
  std::string path;
  std::string sha256;  // 64 hexadecimal digits; empty: the hub does not say it
  std::uint64_t bytes = 0;
};

// Returns whether a path ends with ".gguf", in any case.
bool IsGgufPath(std::string_view path);

struct ChosenFiles {
  std::vector<HubFile> weights;  // the parts in order
  std::vector<HubFile> draft;    // likewise; empty: none
  std::optional<HubFile> projector;
};

// Errors: kNotFound: no file has the tag; the message lists what there is. kUnsupported: several
// models have it, none of the usual quantizations is there, or it has more parts than a manifest. kCorrupt: a part is
// missing, or is there twice.
Result<ChosenFiles> ChooseFiles(const std::vector<HubFile>& files, std::string_view tag);

}  // namespace kvcache::pull
