// Writes events to standard error, as lines of text or of JSON. A full pipe never stops a request: then the
// oldest lines are lost.
//
// An event has no texts of prompts and answers, and no keys.
//
// Thread safety: StartLog and EndLog from one thread before and after all others; LogEvent from any.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/status.h"
#include "server/request/fields.h"

namespace kvcache::server {

enum class LogLevel : std::uint8_t { kOff, kError, kInfo };
enum class LogForm : std::uint8_t { kText, kJson };

// Nothing is written before this. Errors: kOutOfMemory.
Status StartLog(LogLevel level, LogForm form);
// Writes what is left.
void EndLog();

// Writes an event, such as "request" with its numbers. `fields` is an object.
void LogEvent(LogLevel level, const char* event, const Json& fields);

}  // namespace kvcache::server
