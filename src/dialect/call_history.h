// Calls of tools that come back in a conversation: clients leave out what templates need.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dialect/dialect.h"

namespace kvcache {

class ChatFormat;

// The ids of calls that a template writes.
enum class IdForm : std::uint8_t {
  kAny,
  kNine,  // nine letters and digits; the template refuses others
  kNamed  // the name of the tool and a number: functions.get_weather:0
};
// Finds it out: the template writes ids.
IdForm IdFormOf(const ChatFormat& format, const Dialect& dialect);
// Gives calls and their results ids of a form, the same in every turn, where clients have others. `prefix`: before the
// name of a tool. REQUIRES: CompleteCalls.
void RewriteIds(IdForm form, std::string_view prefix, nlohmann::ordered_json& messages);

// Returns the arguments of a call as templates read them: an object also from null, from the text of an object, and
// from one that a limit cut off. Any other text stays.
nlohmann::ordered_json CallArguments(nlohmann::ordered_json arguments);

// Makes arguments objects, and gives calls without an id one, and results of tools the id and the name of their call. A
// result without an id is of the first call of its name, or of any name, that has no result yet. What is no message or
// no call stays.
void CompleteCalls(nlohmann::ordered_json& messages);

// Returns an id that no call of the messages has.
std::string UnusedCallId(const nlohmann::ordered_json& messages);

}  // namespace kvcache
