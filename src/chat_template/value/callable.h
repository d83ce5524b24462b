// The callables of a template, and the arguments of a call.
//
// Thread safety: as value.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chat_template/value/value.h"

namespace kvcache::jinja {

struct Statement;
struct Scope;

struct Callable {
  enum class Kind : std::uint8_t {
    kFunction,  // a global: range, namespace, raise_exception, …
    kMethod,    // of a text, list, dict or loop: `self`
    kMacro,     // `macro` (owned by the template), evaluated in `scope`
  };
  Kind kind = Kind::kFunction;
  std::string name;
  Value self;
  const Statement* macro = nullptr;
  std::shared_ptr<Scope> scope;
  Value caller;  // undefined, or the macro that {% call %} passes
  int nesting = 0;
};

// The arguments of a call. Names carry origins, too: those of `f(**tool)` are foreign, and `kwargs`
// and dict() turn names into strings.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<MarkedText, Value>> named;
};

// Returns the value of each parameter in `names`; nullptr for those not given.
// Errors: too many arguments, an unknown name, a name given twice, fewer than `required`.
Result<std::vector<const Value*>> Bind(const Arguments& arguments,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t required = 0);

}  // namespace kvcache::jinja
