// A model in Hugging Face's layout: a directory with config.json, tokenizer.json and safetensors.
//
// Files are read by plain names. Symbolic links are followed inside of the directory and, in a
// Hugging Face cache (MODEL/snapshots/REVISION), into MODEL/blobs. Links to other places are
// refused.
//
// Thread safety: const calls from any number of threads.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

class HfDirectory {
 public:
  // Errors: kNotFound: there is no such directory, or it has no config.json.
  static Result<HfDirectory> Open(const std::string& path);
  // The same for an adapter: a directory with adapter_config.json.
  static Result<HfDirectory> OpenAdapter(const std::string& path);

  const std::string& path() const { return path_; }

  // Returns whether there is a file of this name, readable or not.
  bool Has(std::string_view name) const;

  // The folder of a model's templates with names. Its files are read as "folder/name".
  static constexpr std::string_view kTemplates = "additional_chat_templates";

  // Returns the names of the files in kTemplates, in order; none if there is no such folder.
  std::vector<std::string> TemplateNames() const;

  // Returns a folder of the model, such as "1_Pooling". Errors: as File.
  Result<HfDirectory> Folder(std::string_view name) const;

  // Returns the path of a file, after its links. Errors: kInvalidArgument: the name is no plain
  // name; kNotFound; kCorrupt: it is a link to the outside, or no regular file.
  Result<std::string> File(std::string_view name) const;

  // Reads a file of at most `max_bytes`. Errors: those of File(); kCorrupt: it is larger.
  Result<std::string> ReadText(std::string_view name, std::size_t max_bytes) const;

  // Reads a file as JSON of at most 32 levels. Errors: those of ReadText; kCorrupt, with the place.
  Result<nlohmann::json> ReadJson(std::string_view name, std::size_t max_bytes) const;

 private:
  HfDirectory() = default;
  static Result<HfDirectory> OpenFolder(const std::string& path);

  std::string path_;   // as given
  std::string root_;   // after its links
  std::string blobs_;  // of a Hugging Face cache; empty: none
};

}  // namespace kvcache
