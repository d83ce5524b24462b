// Turns JSON schemas into a grammar. json_schema.h is the way in.
//
// Schemas that hold together are a list of parts, and lists of the same parts have one rule, so that schemas that
// contain themselves end. Alternatives (anyOf, oneOf, if, nullable) are chosen one after another: each choice adds its
// schema to the parts.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_grammar.h"
#include "grammar/schema/parts.h"
#include "grammar/schema/references.h"
#include "grammar/schema/scalars.h"
#include "grammar/schema/validator.h"

namespace kvcache {

class SchemaCompiler {
 public:
  using Json = nlohmann::ordered_json;
  using Schemas = std::vector<const Json*>;

  SchemaCompiler(const Json& root, GrammarBuilder& builder)
      : references_(root), builder_(builder), json_(builder), validator_(references_, programs_) {}

  // Returns the values that all schemas allow. A schema lives as long as the compiler. `place` is for messages.
  Result<GrammarSymbol> Value(const Schemas& schemas, const std::string& place, int depth);

  // For the parts of objects and lists.
  GrammarBuilder& builder() { return builder_; }
  JsonGrammar& json() { return json_; }
  SchemaReferences& references() { return references_; }
  SchemaValidator& validator() { return validator_; }
  PatternPrograms& programs() { return programs_; }

 private:
  // Schemas that were expanded into parts.
  struct Flat {
    SchemaParts parts{};
    bool impossible = false;  // one of them is `false`
    bool loops = false;       // a '$ref' led back to itself
  };
  struct Types {
    bool null = true, boolean = true, number = true, whole = false, string = true, object = true,
         array = true;
  };
  struct Where {
    const std::string& place;
    int depth;
  };

  Status Flatten(const Json& schema, const Where& where, std::set<const Json*>& chain, Flat& flat);
  Status Expand(const Json& schema, const Where& where, std::set<const Json*>& chain, Flat& flat);
  Status CheckSchema(const Json& schema, const std::string& place);
  Result<GrammarSymbol> ValueOf(Flat flat, const Where& where);
  Status Fill(GrammarSymbol rule, const SchemaParts& parts, const Where& where);

  // Takes the first alternatives that are not chosen yet. Returns false if there are none.
  Result<bool> Choose(GrammarSymbol rule, const SchemaParts& parts, const Where& where);
  Status ChooseNull(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                    const Where& where);
  // Adds an alternative: the parts, of which `at` has chosen `choice`, and more schemas.
  Status Branch(GrammarSymbol rule, SchemaParts parts, std::size_t at, std::uint8_t choice,
                const Schemas& more, const Where& where);
  Status ChooseOne(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                   const Where& where);
  Status ChooseIf(GrammarSymbol rule, const SchemaParts& parts, std::size_t at, const Where& where);
  Status ChooseDependent(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                         const Where& where);
  // Follows a '$ref' that stands alone.
  Result<const Json*> Resolved(const Json& schema, const std::string& place) const;
  // Returns the schema of what `schema` refuses. Errors: kInvalidArgument: no schema says so. `keyword` needs it.
  Result<const Json*> Opposite(const Json& schema, const char* keyword, const std::string& place);

  // `given`: what the parts say under the keyword 'const' or 'enum'.
  Status Constants(GrammarSymbol rule, const SchemaParts& parts, const Json& given,
                   std::string_view keyword, const std::string& place);
  GrammarSequence Constant(const Json& value);
  static Types TypesOf(const SchemaParts& parts);
  // Takes away what 'not' refuses by constants.
  static Status Exclude(const SchemaParts& parts, const std::string& place, Types& types,
                        std::vector<bool>& booleans);
  void AddNumber(GrammarSymbol rule, NumberRange range);
  Status AddNumbers(GrammarSymbol rule, const SchemaParts& parts, bool whole,
                    const std::string& place);
  Status AddText(GrammarSymbol rule, const SchemaParts& parts, const std::string& place);
  Status CheckEnforced(const SchemaParts& parts, const Types& types, const std::string& place);

  SchemaReferences references_;
  GrammarBuilder& builder_;
  JsonGrammar json_;
  PatternPrograms programs_;
  SchemaValidator validator_;
  std::map<SchemaParts, GrammarSymbol> rules_;
  std::map<const Json*, const Json*> opposites_;
  std::map<const Json*, const Json*>
      dependents_;                 // what 'dependentRequired' and 'dependentSchemas' say
  std::set<const Json*> checked_;  // schemas whose keywords have the right form
  std::size_t parts_ = 0;          // of all rules
};

// Add the objects or lists that all parts allow.
Status AddSchemaObject(GrammarSymbol rule, const SchemaParts& parts, const std::string& place,
                       int depth, SchemaCompiler& compiler);
Status AddSchemaArray(GrammarSymbol rule, const SchemaParts& parts, const std::string& place,
                      int depth, SchemaCompiler& compiler);

}  // namespace kvcache
