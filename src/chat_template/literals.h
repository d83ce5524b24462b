// The texts that a template itself holds: its text and its strings.
//
//   <|im_{{ 'start' }}|>{{ '<|' + role + '|>' }}    gives   "<|im_start|><|"   "|>"
//
// Text and printed strings are one literal as long as nothing else is printed between them; tags
// do not part them. Every other string (an argument, what a name is set to) is a literal of its
// own. Strings that are only compared, tested, used as a key or searched for are none: they are not
// written. All literals together are no longer than the source.
//
// Thread safety: a free function.
#pragma once

#include <string>
#include <vector>

#include "chat_template/syntax.h"

namespace kvcache::jinja {

// In the order of the source, none empty.
std::vector<std::string> LiteralsOf(const Body& body);

}  // namespace kvcache::jinja
