// Compiles any JSON as a schema and walks the grammar: a schema is refused with a message, or its texts are
// found byte by byte, within the bounds.
//
//   input   bytes that choose the walk, up to a 0; then the schema
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "fuzz_input.h"
#include "grammar/grammar_automaton.h"
#include "grammar/schema/json_schema.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

void Walk(Grammar grammar, std::string_view choices) {
  GrammarAutomaton automaton(std::move(grammar));
  GrammarAutomaton::State state = automaton.start();
  for (const char choice : choices) {
    if (state == GrammarAutomaton::kDead) return;
    // The next byte that is allowed, from a chosen one on.
    GrammarAutomaton::State next = GrammarAutomaton::kDead;
    for (int i = 0; i < 256 && next == GrammarAutomaton::kDead; ++i) {
      next = automaton.Next(state, static_cast<unsigned char>(choice + i));
      Check(automaton.size() <= GrammarAutomaton::kMaxStates);
    }
    if (next == GrammarAutomaton::kDead && !automaton.full()) {
      // No text gets stuck.
      Check(automaton.IsEnd(state) && automaton.Accepts(state));
    }
    state = next;
    // What is forgotten changes nothing.
    if (state == GrammarAutomaton::kDead || choice % 7 != 0) continue;
    const bool accepts = automaton.Accepts(state);
    const bool ends = automaton.IsEnd(state);
    state = automaton.ForgetAllBut(state);
    Check(automaton.Accepts(state) == accepts && automaton.IsEnd(state) == ends);
  }
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::string_view choices = text.substr(0, std::min(text.find('\0'), std::size_t{64}));
  text.remove_prefix(std::min(text.size(), choices.size() + 1));
  const Json schema = Json::parse(text, nullptr, false);
  if (schema.is_discarded()) return 0;
  GrammarBuilder builder;
  const auto root = AddJsonSchema(schema, builder);
  if (!root.ok()) {
    Check(!root.status().message().empty());
    return 0;
  }
  auto grammar = builder.Finish(*root);
  if (!grammar.ok()) {
    Check(!grammar.status().message().empty());
    return 0;
  }
  Walk(std::move(*grammar), choices);
  return 0;
}
