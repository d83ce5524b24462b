// Tells whether a JSON schema allows a value, for constants.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "grammar/schema_references.h"
#include "grammar/schema_scalars.h"

namespace kvcache {

class SchemaValidator {
 public:
  // REQUIRES: both outlive the validator.
  SchemaValidator(const SchemaReferences& references, PatternPrograms& programs)
      : references_(references), programs_(programs) {}

  // The values that are asked for are those of this 'const' or 'enum', from now on.
  void TakeAsGiven(const nlohmann::ordered_json* constants) { given_ = constants; }
  // Errors: kInvalidArgument: the schema has a keyword that is not supported, or no right value.
  Result<bool> Allows(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value,
                      const std::string& place);

 private:
  using Json = nlohmann::ordered_json;

  Result<bool> Check(const Json& schema, const Json& value);
  Result<bool> CheckKeyword(const std::string& keyword, const Json& schema, const Json& value);
  Result<bool> CheckCombined(const std::string& keyword, const Json& schema, const Json& value);
  Result<bool> CheckObject(const Json& schema, const Json& value);
  Result<bool> CheckMember(const Json& schema, const std::string& name, const Json& value);
  Result<bool> CheckArray(const Json& schema, const Json& value);
  // Returns how many of the schemas allow the value, up to `enough`.
  Result<std::size_t> CountOfAllowing(const Json& schemas, const Json& value, std::size_t enough);
  Result<bool> Matches(const std::string& pattern, const std::string& text);
  Result<bool> AllowsText(const Json& schema, const std::string& text);

  const SchemaReferences& references_;
  PatternPrograms& programs_;
  std::string place_;
  const Json* given_ = nullptr;
  std::map<const Json*, std::shared_ptr<const TextLanguage>> texts_;
  int depth_ = 0;
  std::size_t steps_ = 0;
};

}  // namespace kvcache
