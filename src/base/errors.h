// Makes an error status of a code and a message.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <utility>

#include "kvcache/status.h"

namespace kvcache {

// The caller passed a value that breaks a rule.
inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// A file contradicts its format or itself.
inline Status Corrupt(std::string message) {
  return {StatusCode::kCorrupt, std::move(message)};
}

// The request or the file is valid, but this library does not offer it.
inline Status Unsupported(std::string message) {
  return {StatusCode::kUnsupported, std::move(message)};
}

}  // namespace kvcache
