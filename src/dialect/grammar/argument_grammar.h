// The grammar of the arguments of one tool, in each way that dialects write them.
//
// Thread safety: one thread at a time.
#pragma once

#include <nlohmann/json.hpp>

#include "dialect/dialect.h"
#include "grammar/grammar.h"
#include "grammar/json_grammar.h"
#include "kvcache/status.h"

namespace kvcache {

class ArgumentGrammar {
 public:
  // All must outlive this. `loose`: a schema that cannot be enforced allows any object.
  ArgumentGrammar(const CallSyntax& syntax, bool loose, GrammarBuilder& builder)
      : syntax_(syntax), loose_(loose), builder_(builder), json_(builder) {}

  // Adds the arguments that a schema allows, up to what ends them in the dialect. Errors: those of AddJsonSchema.
  Result<GrammarSequence> Of(const nlohmann::ordered_json& schema);
  JsonGrammar& json() { return json_; }

 private:
  Result<GrammarSymbol> Object(const nlohmann::ordered_json& schema);
  // Adds named values, each as Pair writes it, with `separator` between them.
  Result<GrammarSequence> Pairs(const nlohmann::ordered_json& schema,
                                const GrammarSequence& separator);
  Result<GrammarSequence> Pair(const std::string& name, const nlohmann::ordered_json& schema);
  Result<GrammarSequence> Parameter(const std::string& name, const nlohmann::ordered_json& schema);
  Result<GrammarSequence> Value(const nlohmann::ordered_json& schema);
  GrammarSymbol Braced();
  GrammarSequence Quoted(const nlohmann::ordered_json& schema);

  const CallSyntax& syntax_;
  const bool loose_;
  GrammarBuilder& builder_;
  JsonGrammar json_;
};

}  // namespace kvcache
