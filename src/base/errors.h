// Makes an error status of a code and a message, and of an allocation that was refused.
//
// Thread safety: free functions.
#pragma once

#include <new>
#include <string>
#include <type_traits>
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

// A file, a name or a layer does not exist.
inline Status NotFound(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}

// There are too few free cells or states.
inline Status CacheFull(std::string message) {
  return {StatusCode::kCacheFull, std::move(message)};
}

// An allocation was refused.
inline Status OutOfMemory(std::string message) {
  return {StatusCode::kOutOfMemory, std::move(message)};
}

// Returns what `call` returns, a Status or a Result, and Ok if it returns nothing; or OutOfMemory if it
// throws std::bad_alloc. `message` is a text, or a function that makes one: a text with numbers needs
// memory of its own, and is made only after the failure.
//
//   KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the rows", [&] { rows.resize(count); }));
template <typename Message, typename Call>
auto Guarded(const Message& message, const Call& call) {
  constexpr bool kIsVoid = std::is_void_v<std::invoke_result_t<const Call&>>;
  using Returned = std::conditional_t<kIsVoid, Status, std::invoke_result_t<const Call&>>;
  try {
    if constexpr (kIsVoid) {
      call();
      return Status::Ok();
    } else {
      return call();
    }
  } catch (const std::bad_alloc&) {
    if constexpr (std::is_invocable_v<const Message&>) {
      return Returned(OutOfMemory(message()));
    } else {
      return Returned(OutOfMemory(message));
    }
  }
}

}  // namespace kvcache
