#include "support/cache_script.h"

#include <array>
#include <cassert>
#include <sstream>
#include <string_view>

namespace kvcache::testing {
namespace {

using Kind = ScriptStep::Kind;

constexpr std::array<std::string_view, 21> kKinds = {
    "forward", "reserve",  "copy",   "remove", "prepare", "restore",  "compact",
    "accept",  "snapshot", "bring",  "merge",  "split",   "drop",     "materialize",
    "capture", "take",     "export", "begin",  "commit",  "rollback", "evict"};
constexpr std::array<std::string_view, 7> kCalls = {"allocate", "store",  "copy", "transfer",
                                                    "shift",    "values", "any"};

template <std::size_t kSize>
std::size_t Find(const std::array<std::string_view, kSize>& names, const std::string& name) {
  std::size_t i = 0;
  while (i < kSize && names[i] != name) ++i;
  assert(i < kSize);
  return i;
}

std::string PositionText(Position position) {
  return position == kEndOfSequence ? "end" : std::to_string(position);
}

Position ParsePosition(const std::string& text) {
  return text == "end" ? kEndOfSequence : std::stoi(text);
}

void WriteList(std::string_view name, const std::vector<int>& list, std::ostream& out) {
  if (!list.empty()) out << name;
  for (const int value : list) out << ' ' << value;
}

void Write(const ScriptStep& step, std::ostream& out) {
  out << kKinds[static_cast<std::size_t>(step.kind)];
  const bool transaction =
      step.kind == Kind::kBegin || step.kind == Kind::kCommit || step.kind == Kind::kRollBack;
  if (transaction) out << ' ' << step.slot;
  for (const TestToken& token : step.tokens) {
    out << ' ' << token.sequence << ':' << PositionText(token.position);
  }
  if (step.kind == Kind::kBegin) {
    out << " max " << step.begin << (step.isolated ? " isolated" : "");
  }
  WriteList(" layers", step.layers, out);
  WriteList(" except", step.except, out);
  WriteList(" items", step.items, out);
  WriteList(" parents", step.parents, out);
  if (step.kind == Kind::kSnapshot) {
    out << ' ' << step.sequence << ' ' << step.begin << ' ' << step.end << ' ' << step.slot;
  }
  if (step.kind == Kind::kBring) {
    out << ' ' << step.sequence << ' ' << step.begin << ' ' << step.slot;
  }
  if (step.kind == Kind::kMerge) out << ' ' << step.slot << ' ' << step.target;
  if (step.kind == Kind::kSplit) {
    out << ' ' << step.slot << ' ' << step.begin << ' ' << step.target;
  }
  if (step.kind == Kind::kDrop || step.kind == Kind::kMaterialize || step.kind == Kind::kExport) {
    out << ' ' << step.slot;
  }
  if (step.kind == Kind::kCapture) out << ' ' << step.sequence << ' ' << step.begin;
  if (step.kind == Kind::kEvict) out << ' ' << step.sequence;
  if (step.kind == Kind::kTake) out << ' ' << step.sequence << ' ' << step.slot;
  WriteList("", step.accepted, out);
  if (step.kind == Kind::kCopy) {
    out << ' ' << step.sequence << ' ' << step.target << ' ' << PositionText(step.begin);
  }
  if (step.kind == Kind::kRemove) {
    out << ' ' << step.sequence << ' ' << PositionText(step.begin) << ' ' << PositionText(step.end);
  }
  if (step.kind == Kind::kPrepare || step.kind == Kind::kRestore) {
    out << ' ' << step.sequence << ' ' << PositionText(step.begin);
  }
  if (step.fail_nth > 0) {
    out << " fail " << kCalls[static_cast<std::size_t>(step.fail_call)] << ' ' << step.fail_nth;
  }
  out << '\n';
}

ScriptStep ParseStep(std::istream& in) {
  ScriptStep step;
  std::string word;
  in >> word;
  step.kind = static_cast<Kind>(Find(kKinds, word));
  std::string begin;
  std::string end;
  if (step.kind == Kind::kCopy) in >> step.sequence >> step.target >> begin;
  if (step.kind == Kind::kRemove) in >> step.sequence >> begin >> end;
  if (step.kind == Kind::kPrepare || step.kind == Kind::kRestore) in >> step.sequence >> begin;
  if (step.kind == Kind::kSnapshot) in >> step.sequence >> step.begin >> step.end >> step.slot;
  if (step.kind == Kind::kBring) in >> step.sequence >> step.begin >> step.slot;
  if (step.kind == Kind::kMerge) in >> step.slot >> step.target;
  if (step.kind == Kind::kSplit) in >> step.slot >> step.begin >> step.target;
  if (step.kind == Kind::kDrop || step.kind == Kind::kMaterialize || step.kind == Kind::kExport) {
    in >> step.slot;
  }
  if (step.kind == Kind::kCapture) in >> step.sequence >> step.begin;
  if (step.kind == Kind::kEvict) in >> step.sequence;
  if (step.kind == Kind::kTake) in >> step.sequence >> step.slot;
  if (step.kind == Kind::kBegin || step.kind == Kind::kCommit || step.kind == Kind::kRollBack) {
    in >> step.slot;
  }
  if (!begin.empty()) step.begin = ParsePosition(begin);
  if (!end.empty()) step.end = ParsePosition(end);
  const bool lists =
      step.kind == Kind::kAccept || step.kind == Kind::kCapture || step.kind == Kind::kCommit;
  std::vector<int>* list = lists ? &step.accepted : nullptr;
  while (in >> word) {
    if (word == "fail") {
      in >> word >> step.fail_nth;
      step.fail_call = static_cast<ReferenceBackend::Call>(Find(kCalls, word));
    } else if (const std::size_t colon = word.find(':'); colon != std::string::npos) {
      step.tokens.push_back(
          {std::stoi(word.substr(0, colon)), ParsePosition(word.substr(colon + 1)), 0});
    } else if (word == "max") {
      in >> step.begin;
    } else if (word == "isolated") {
      step.isolated = true;
    } else if (word == "layers") {
      list = &step.layers;
    } else if (word == "except") {
      list = &step.except;
    } else if (word == "items") {
      list = &step.items;
    } else if (word == "parents") {
      list = &step.parents;
    } else {
      assert(list != nullptr);
      list->push_back(std::stoi(word));
    }
  }
  return step;
}

}  // namespace

std::string ToText(const Script& script) {
  std::ostringstream out;
  for (const ScriptStep& step : script) Write(step, out);
  return out.str();
}

Script ParseScript(const std::string& text) {
  Script script;
  std::istringstream in(text);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    if (line.find_first_not_of(' ') != std::string::npos) script.push_back(ParseStep(words));
  }
  return script;
}

}  // namespace kvcache::testing
