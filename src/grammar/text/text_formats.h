// The values of the keyword 'format', as patterns.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace kvcache {

// Returns the pattern that texts of a format match, exactly as its standard says; null: the format refuses nothing,
// as one that is not known, or that no automaton can follow ("regex", "idn-hostname", "idn-email").
const std::string* PatternOfFormat(const std::string& format);

}  // namespace kvcache
