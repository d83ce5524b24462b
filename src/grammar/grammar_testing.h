// Grammars of JSON schemas, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "grammar/grammar_automaton.h"
#include "grammar/schema/json_schema.h"

namespace kvcache {

inline Result<Grammar> GrammarOfSchema(const std::string& schema) {
  GrammarBuilder builder;
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol root,
                           AddJsonSchema(nlohmann::ordered_json::parse(schema), builder));
  return builder.Finish(root);
}

// Returns whether a text is one of the grammar's.
inline bool Matches(const Grammar& grammar, const std::string& text) {
  GrammarAutomaton automaton(grammar);
  GrammarAutomaton::State state = automaton.start();
  for (const char c : text) state = automaton.Next(state, static_cast<unsigned char>(c));
  return state != GrammarAutomaton::kDead && automaton.Accepts(state);
}

}  // namespace kvcache
