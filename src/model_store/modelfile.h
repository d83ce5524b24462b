// Modelfiles: text that describes a model to create, in Ollama's syntax.
//
//   # a comment
//   INSTRUCTION value        the name of the instruction in any case
//   INSTRUCTION "value"      the value between the quotes, which may have several lines
//   INSTRUCTION """value"""  the same; the value may hold quotes
//
// A value begins after the instruction's name, and ends with its line, or with the line that ends
// with its closing quotes. There are no escapes. CR LF ends a line as LF does.
//
// Thread safety: values and free functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "model_store/stored_model.h"

namespace kvcache {

struct Modelfile {
  std::string from;                   // a file, a directory or a name
  std::string draft;                  // the same; empty: none
  std::vector<std::string> adapters;  // files or directories
  std::vector<StoredParameter> parameters;
  std::optional<std::string> chat_template;
  std::optional<std::string> system;
  std::vector<StoredMessage> messages;
  std::vector<std::string> licenses;
  std::string requires_version;  // empty: none

  bool operator==(const Modelfile&) const = default;
};

inline constexpr std::size_t kMaxModelfileBytes = std::size_t{16} << 20;

// Errors, all with the number of the line: kInvalidArgument: the text breaks the syntax, or names an
// unknown instruction or parameter; kUnsupported: an instruction that this program does not offer
// (RENDERER, PARSER).
Result<Modelfile> ParseModelfile(std::string_view text);

// Checks a PARAMETER. Errors: kInvalidArgument: an unknown name, or a value of another kind.
Status CheckParameter(const std::string& name, const std::string& value);

// Checks REQUIRES, an empty text or a version, against the version of a program. Missing numbers are zeros.
// Errors: kUnsupported: the program is older.
Status CheckRequires(const std::string& requires_version, const std::string& program);

// Returns a Modelfile that ParseModelfile reads as `file`. REQUIRES: no value holds `"""`.
std::string ModelfileText(const Modelfile& file);

// Returns whether a template is written in Go's template language, as Ollama's are.
bool IsGoTemplate(std::string_view text);

}  // namespace kvcache
