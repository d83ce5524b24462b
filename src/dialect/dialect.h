// A dialect: how a family of models writes thoughts, calls of tools and the text of an answer.
//
//   thoughts.begin  the model thinks  thoughts.end
//   text_begin  text  text_end
//   section_begin
//     call_begin  name  name_end  arguments  call_end
//     call_begin  name  name_end  arguments  call_end
//   section_end
//
// Each marker may be empty. White space beside markers belongs to nothing, so no marker but parameter_begin and what
// follows it ends with white space.
//
// A marker that is a control token of the vocabulary is written between two bytes that no text has (kEdge). Then text
// that the model writes letter by letter is never such a marker (BindDialect).
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

#include "chat_template/thought_syntax.h"

namespace kvcache {

class Tokenizer;

// The byte before and behind a control token's text. It is in no UTF-8.
inline constexpr char kEdge = '\xff';

// How the name and the arguments of a call are written.
enum class CallForm : std::uint8_t {
  kNone,        // the model calls no tools, or nobody knows how
  kObject,      // {"name": "f", "arguments": {"a": 1}}, or an array of such objects
  kKeyed,       // {"f": {"a": 1}}, or an array of such objects
  kNamed,       // f{"a": 1}
  kParameters,  // f<parameter=a>1</parameter>
  kPython,      // f(a=1), or a list of such calls
  kBraces,      // f{a:1}, with strings between marks of their own
  kChannels,    // messages in channels (harmony_reader.h)
};

struct CallSyntax {
  CallForm form = CallForm::kNone;
  std::string section_begin{}, section_end{};  // around all calls
  std::string call_begin{}, call_end{};        // around each call
  // kNamed, kParameters: behind the name; empty: the name ends where its line ends, or the next marker begins.
  std::string name_end{};
  std::string name_prefix{};  // is no part of the name
  bool numbered = false;      // ":0" behind the name is no part of it; all of it is the call's id
  std::string id_begin{};     // kNamed: between the name and the call's id
  bool known_only = false;    // only calls of offered tools are calls
  bool shared = false;        // one section has all calls; else each call has its own
  bool listed = false;        // kObject, kKeyed, kPython: calls stand in an array
  // kObject: the keys of the name, the arguments and the call's id. The first ones are written, all are read.
  std::vector<std::string> name_keys{"name"}, argument_keys{"arguments", "parameters"};
  // kParameters: around the name and the value of one. Between name_end and value_begin may stand whether the value is
  // a string ("true").
  std::string parameter_begin{}, parameter_name_end{}, value_begin{}, parameter_end{};
  bool padded = false;  // a line break before and behind a value is no part of it
  std::string quote{};  // kBraces: around strings

  // Returns whether calls stand in the text without a marker. Then only calls of offered tools are calls.
  bool bare() const {
    return form != CallForm::kNone && form != CallForm::kChannels && section_begin.empty() &&
           call_begin.empty();
  }
};

struct Dialect {
  std::string name{};
  ThoughtSyntax thoughts{"<think>", "</think>"};
  std::string text_begin{},
      text_end{};  // around the text; `text_begin` is a marker only before all text
  CallSyntax calls{};
  // What a template writes that offers tools in this dialect and writes no calls: all of these. None: the marker.
  std::vector<std::string> signs{};
  std::vector<std::int32_t>
      marker_tokens{};  // control tokens in the markers (BindDialect), in order

  bool has_calls() const { return calls.form != CallForm::kNone; }
};

// Where a template reads the tools that are offered.
enum class ToolForm : std::uint8_t {
  kTools,       // in the variable `tools`
  kFunctions,   // as JSON in the variable `functions`, with the time in `datetime`
  kSystemText,  // as JSON in the key `tools` of the system message
  kSystemList,  // as a list there
  kText         // nowhere: they become a part of the system message's text
};

// How a template wants what models said in earlier turns, and tools.
struct HistoryForm {
  ToolForm tools = ToolForm::kTools;
  std::string example{};        // kText: a call as the model writes it
  bool text_arguments = false;  // the arguments of calls are JSON in a string
  bool null_content = false;    // the content of a message with calls and no text is null
  CallSyntax text_calls{};  // the template writes no calls: they stand in the content, in this form
  std::string thoughts_key{"reasoning_content"};
};

using SharedDialect = std::shared_ptr<const Dialect>;

// The dialects that are known. Of two that read the same text, the first is meant.
const std::vector<Dialect>& Dialects();
// The ways to write thoughts that are known.
const std::vector<ThoughtSyntax>& ThoughtSyntaxes();
// Returns the dialect with this name; null: there is none.
const Dialect* FindDialect(std::string_view name);
// The same. Errors: kInvalidArgument: there is none; the message lists all.
Status CheckDialect(const std::string& name);
// Returns the dialect without calls.
SharedDialect PlainDialect();

// Returns a dialect whose markers have edges where they are control tokens of a vocabulary.
Dialect BindDialect(Dialect dialect, const Tokenizer& tokenizer);

}  // namespace kvcache
