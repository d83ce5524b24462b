// Statuses of the common error codes, by the name of the code.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <utility>

#include "kvcache/status.h"

namespace kvcache {

inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status Corrupt(std::string message) {
  return {StatusCode::kCorrupt, std::move(message)};
}
inline Status Unsupported(std::string message) {
  return {StatusCode::kUnsupported, std::move(message)};
}

}  // namespace kvcache
