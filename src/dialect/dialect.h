// A dialect: how a family of models writes thoughts, calls of tools and the text of an answer.
//
//   thoughts.begin  the model thinks  thoughts.end
//   text
//   section_begin  calls  section_end
//   text
//
// Each marker may be empty. White space beside markers belongs to nothing.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

// How the name and the arguments of a call are written.
enum class CallForm : std::uint8_t {
  kNone,    // the model calls no tools, or nobody knows how
  kObject,  // {"name": "f", "arguments": {"a": 1}}, or an array of such objects
};

struct CallSyntax {
  CallForm form = CallForm::kNone;
  std::string section_begin{}, section_end{};  // around all calls

  // Returns whether calls stand in the text without a marker. Then only calls of offered tools are calls.
  bool bare() const { return section_begin.empty(); }
};

struct ThoughtSyntax {
  std::string begin{}, end{};
};

struct Dialect {
  std::string name{};
  ThoughtSyntax thoughts{"<think>", "</think>"};
  CallSyntax calls{};
  bool has_calls() const { return calls.form != CallForm::kNone; }
};

using SharedDialect = std::shared_ptr<const Dialect>;

// The dialects that are known, the most special ones first.
const std::vector<Dialect>& Dialects();
// Returns the dialect with this name; null: there is none.
const Dialect* FindDialect(std::string_view name);
// Returns the dialect without calls.
SharedDialect PlainDialect();

}  // namespace kvcache
