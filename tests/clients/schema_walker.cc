// Tries schemas: whether texts are allowed, and which texts are found by random walks.
//
//   in, a line each:   {"schema": …, "texts": [texts that must be allowed], "others": [texts that must not]}
//   out, a line each:  {"error": "…"} or {"refused": [texts], "taken": [others], "walks": [texts]}
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/schema/json_schema.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using State = GrammarAutomaton::State;

constexpr int kWalks = 4;
constexpr int kFreeBytes = 60;  // from then on a walk looks for its end
constexpr int kMaxBytes = 4000;

bool Allows(GrammarAutomaton& automaton, const std::string& text) {
  State state = automaton.start();
  for (const char c : text) state = automaton.Next(state, static_cast<unsigned char>(c));
  return state != GrammarAutomaton::kDead && automaton.Accepts(state);
}

// Returns a byte that may follow; -1: the text ends here.
int Choose(GrammarAutomaton& automaton, State state, bool to_end, std::mt19937& random) {
  const bool accepts = automaton.Accepts(state);
  if (accepts && (to_end || random() % 3 == 0 || automaton.IsEnd(state))) return -1;
  const auto may_follow = [&](unsigned char byte) {
    return automaton.Next(state, byte) != GrammarAutomaton::kDead;
  };
  if (to_end || random() % 4 == 0) {
    for (const char c : std::string_view("\"}],:")) {
      if (may_follow(static_cast<unsigned char>(c))) return static_cast<unsigned char>(c);
    }
  }
  std::vector<int> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    if (may_follow(static_cast<unsigned char>(byte))) bytes.push_back(byte);
  }
  if (bytes.empty()) return -1;
  return bytes[random() % bytes.size()];
}

// Returns whether the walk came to an end.
bool Walk(GrammarAutomaton& automaton, std::mt19937& random, std::string& text) {
  State state = automaton.start();
  while (text.size() < kMaxBytes) {
    const int byte = Choose(automaton, state, text.size() > kFreeBytes, random);
    if (byte < 0) return automaton.Accepts(state);
    text += static_cast<char>(byte);
    state = automaton.Next(state, static_cast<unsigned char>(byte));
  }
  return false;
}

Json Try(const Json& line, std::mt19937& random) {
  GrammarBuilder builder;
  const auto root = AddJsonSchema(line["schema"], builder);
  if (!root.ok()) return {{"error", root.status().message()}};
  auto grammar = builder.Finish(*root);
  if (!grammar.ok()) return {{"error", grammar.status().message()}};
  GrammarAutomaton automaton(*std::move(grammar));
  Json found = {{"refused", Json::array()},
                {"taken", Json::array()},
                {"walks", Json::array()},
                {"stuck", Json::array()}};
  for (const Json& text : line.value("texts", Json::array())) {
    if (!Allows(automaton, text.get<std::string>())) found["refused"].push_back(text);
  }
  for (const Json& text : line.value("others", Json::array())) {
    if (Allows(automaton, text.get<std::string>())) found["taken"].push_back(text);
  }
  for (int i = 0; i < kWalks; ++i) {
    std::string text;
    const bool ended = Walk(automaton, random, text);
    const bool stuck = !ended && text.size() < kMaxBytes;
    if (ended || stuck) found[ended ? "walks" : "stuck"].push_back(text);
  }
  if (automaton.full()) found["full"] = true;
  return found;
}

}  // namespace
}  // namespace kvcache

int main() {
  std::mt19937 random(11);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << kvcache::Try(nlohmann::ordered_json::parse(line), random)
                     .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
  }
  return 0;
}
