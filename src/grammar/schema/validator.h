// Tells whether a JSON schema allows a value, for constants.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "grammar/schema/references.h"
#include "grammar/schema/scalars.h"

namespace kvcache {

class SchemaValidator {
 public:
  // REQUIRES: both outlive the validator.
  SchemaValidator(const SchemaReferences& references, PatternPrograms& programs)
      : references_(references), programs_(programs) {}

  // `given`: the 'const' or 'enum' that the value is from, which is not compared with it; null: none. Errors:
  // kInvalidArgument: the schema has a keyword that is not supported, or no right value, or takes too many steps.
  Result<bool> Allows(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value,
                      const std::string& place, const nlohmann::ordered_json* given = nullptr);

 private:
  using Json = nlohmann::ordered_json;

  Result<bool> Check(const Json& schema, const Json& value);
  // Counts steps. Errors: kInvalidArgument: there are too many.
  Status Spend(std::size_t steps);
  // `own`: what the schema says under the keyword.
  Result<bool> CheckKeyword(const std::string& keyword, const Json& own, const Json& schema,
                            const Json& value);
  Result<bool> IsSame(const Json& a, const Json& b);
  Result<bool> IsOneOf(const Json& constants, const Json& value);
  Result<bool> AreDistinct(const Json& values);
  Result<bool> CheckCombined(const std::string& keyword, const Json& own, const Json& schema,
                             const Json& value);
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
  const Json* asked_ = nullptr;  // the value, and where it is from
  const Json* given_ = nullptr;
  std::set<const Json*> checked_;  // schemas whose keywords have the right form
  std::map<const Json*, std::shared_ptr<const TextLanguage>> texts_;
  int depth_ = 0;
  std::size_t steps_ = 0;
};

}  // namespace kvcache
