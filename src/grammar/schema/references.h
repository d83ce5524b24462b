// The schema as a whole: what '$ref' finds, and schemas that are made from others.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

class SchemaReferences {
 public:
  // REQUIRES: `root` outlives this.
  explicit SchemaReferences(const nlohmann::ordered_json& root) : root_(root) {}

  // Returns the schema that a '$ref' names. Errors: kInvalidArgument: there is none.
  Result<const nlohmann::ordered_json*> Target(const std::string& to,
                                               const std::string& place) const;
  // Keeps a schema. Equal ones are one. Errors: kInvalidArgument: they take more than 4 MB together.
  Result<const nlohmann::ordered_json*> Keep(nlohmann::ordered_json schema,
                                             const std::string& place);

 private:
  const nlohmann::ordered_json& root_;
  std::map<std::string, nlohmann::ordered_json> made_;
  std::size_t made_bytes_ = 0;
};

}  // namespace kvcache
