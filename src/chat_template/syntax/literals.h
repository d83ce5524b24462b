// Collects the texts that a template may write: its text and its strings.
//
//   <|im_{{ 'start' }}|>{{ '<|' + role + '|>' }}    gives   "<|im_start|><|"   "|>"
//
// Adjacent text and printed strings form one literal until something else is printed; tags do not
// separate them. Every other string (an argument, a value assigned to a name) is a literal of its
// own. Strings that are only compared, tested, searched for or used as keys are omitted, because
// the template does not write them. All literals together are no longer than the source.
//
// Thread safety: a free function.
#pragma once

#include <string>
#include <vector>

#include "chat_template/syntax/syntax.h"

namespace kvcache::jinja {

// Returns the literals in the order of the source, none empty.
std::vector<std::string> LiteralsOf(const Body& body);

}  // namespace kvcache::jinja
