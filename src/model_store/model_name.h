// Names of models in the local store, as Ollama writes them:
//
//   [[host/]namespace/]model[:tag]      registry.ollama.ai, library and latest are the defaults
//
// A host has 1 to 350 characters, the other parts 1 to 80. The first character of a part is a
// letter, a digit or '_'. Later ones may also be '-', '.' (not in a namespace) and ':' (in a host).
// So no part of a valid name is "..", empty, or a path of its own.
//
// Thread safety: values and free functions.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

struct ModelName {
  std::string host;
  std::string space;  // the namespace
  std::string model;
  std::string tag;

  // Parses a name and fills in the defaults. Errors: kInvalidArgument: the part, and the rule.
  static Result<ModelName> Parse(std::string_view text);

  // Returns the manifest's path below "manifests/": "host/namespace/model/tag".
  std::string Path() const;

  // Returns the shortest name that means this model; the tag is always shown.
  std::string Short() const;

  bool operator==(const ModelName&) const = default;
};

}  // namespace kvcache
