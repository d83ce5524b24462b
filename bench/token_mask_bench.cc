// The mask of a vocabulary of 128,000 tokens: the first time in a state, and again. Checks that it allows what the
// automaton allows of each token tried alone, then times.
#include <benchmark/benchmark.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/schema/json_schema.h"
#include "grammar/token_mask.h"

namespace kvcache {
namespace {

constexpr std::size_t kTokens = 128'000;

// Words, and as many others as vocabularies have: letters of other scripts, punctuation, spaces.
std::shared_ptr<const TokenTable> MakeTable() {
  std::mt19937 random(1);
  std::vector<std::string> pieces;
  for (int byte = 1; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  while (pieces.size() < kTokens) {
    std::string piece = random() % 2 == 0 ? " " : "";
    const bool wide = random() % 4 == 0;
    const auto length = 1 + random() % (wide ? 4 : 9);
    for (unsigned i = 0; i < length; ++i) {
      if (wide) {
        piece += static_cast<char>(0xD0 + random() % 2);
        piece += static_cast<char>(0x80 + random() % 64);
      } else {
        piece += random() % 40 == 0 ? "\"\\{}[],:\n."[random() % 10]
                                    : static_cast<char>('a' + random() % 26);
      }
    }
    pieces.push_back(std::move(piece));
  }
  pieces.emplace_back("</s>");
  return std::make_shared<const TokenTable>(
      std::move(pieces), std::vector<std::int32_t>{static_cast<std::int32_t>(kTokens)});
}

Grammar GrammarOf(const char* schema) {
  GrammarBuilder builder;
  const auto root = AddJsonSchema(nlohmann::ordered_json::parse(schema), builder);
  return *builder.Finish(*root);
}

TokenMask MaskOf(const std::shared_ptr<const TokenTable>& table, const char* schema) {
  return TokenMask(table, std::make_shared<const Grammar>(GrammarOf(schema)));
}

// Returns whether the mask behind `text` allows each token that continues there, and no other.
bool IsRight(const TokenTable& table, TokenMask& mask, const char* schema,
             const std::string& text) {
  GrammarAutomaton automaton(GrammarOf(schema));
  const auto walk = [&automaton](GrammarAutomaton::State state, const std::string& bytes) {
    for (const char c : bytes) state = automaton.Next(state, static_cast<unsigned char>(c));
    return state;
  };
  const GrammarAutomaton::State here = walk(automaton.start(), text);
  std::vector<float> logits(table.size(), 0.0f);
  if (!mask.Apply(logits)) return false;
  for (std::size_t i = 0; i < kTokens; ++i) {
    const std::string& piece = table.piece(static_cast<std::int32_t>(i));
    if ((logits[i] == 0.0f) != (walk(here, piece) != GrammarAutomaton::kDead)) return false;
  }
  return (logits[kTokens] == 0.0f) == automaton.Accepts(here);
}

void Run(benchmark::State& state, const char* schema, const std::string& text, bool again) {
  static const auto table = MakeTable();
  std::vector<float> logits(table->size());
  TokenMask mask = MaskOf(table, schema);
  for (const char c : text) {
    if (!mask.Take(static_cast<unsigned char>(c) - 1)) return state.SkipWithError("not allowed");
  }
  if (!IsRight(*table, mask, schema, text)) return state.SkipWithError("the mask is wrong");
  for (auto _ : state) {
    state.PauseTiming();
    if (!again) mask = MaskOf(table, schema);
    for (const char c : again ? "" : text) {
      if (!mask.Take(static_cast<unsigned char>(c) - 1)) return state.SkipWithError("not allowed");
    }
    logits.assign(logits.size(), 0.0f);
    state.ResumeTiming();
    if (!mask.Apply(logits)) return state.SkipWithError("nothing is allowed");
  }
}

constexpr const char* kText = R"({"type": "string"})";
constexpr const char* kShortText = R"({"type": "string", "maxLength": 200})";
constexpr const char* kObject =
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";

BENCHMARK_CAPTURE(Run, inside_of_a_text, kText, "\"a", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Run, inside_of_a_bounded_text, kShortText, "\"a", false)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Run, before_an_object, kObject, "", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Run, a_state_again, kText, "", true)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvcache

BENCHMARK_MAIN();
