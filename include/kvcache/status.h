// Errors as values: Status, and Result<T> for calls that return a value.
//
// The library never throws, prints or aborts. Every call that can fail returns one of these two,
// and both are [[nodiscard]]. A message names the object, its value and the rule, in one line
// without a full stop, so that callers can put context in front ("model.gguf: tensor 'x': …").
//
// Thread safety: values; as thread-safe as an int.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // the caller's arguments contradict the contract
  kCacheFull,        // too few free cells or states for the batch
  kUnsupported,      // a valid request that is not implemented: a dtype, a layout, a kind
  kNotFound,         // a file, a name or a layer does not exist
  kOutOfMemory,      // an allocation was refused
  kIo,               // the operating system reported an error
  kCorrupt,          // input bytes that violate their format
  kCancelled,        // the caller asked to stop
  kInternal,         // a bug in this library
};

// Returns the code's name for messages and JSON, such as "cache full".
constexpr std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kCacheFull: return "cache full";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kIo: return "input/output error";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Returns the same error with "context: " before its message. Ok stays Ok.
  Status WithContext(std::string_view context) && {
    if (!ok()) message_ = std::string(context) + ": " + message_;
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value, or the error that explains its absence. REQUIRES: a Status given to it is not ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Status TakeStatus() && { return std::move(status_); }

  // REQUIRES: ok().
  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvcache

// Returns from the enclosing function when `expression` (a Status) is an error.
#define KVCACHE_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    ::kvcache::Status kvcache_status_ = (expression);  \
    if (!kvcache_status_.ok()) return kvcache_status_; \
  } while (false)

#define KVCACHE_CONCAT_INNER_(a, b) a##b
#define KVCACHE_CONCAT_(a, b) KVCACHE_CONCAT_INNER_(a, b)

// KVCACHE_ASSIGN_OR_RETURN(auto x, F()): x = F()'s value, or returns F()'s error.
#define KVCACHE_ASSIGN_OR_RETURN(lhs, expression) \
  KVCACHE_ASSIGN_OR_RETURN_(KVCACHE_CONCAT_(kvcache_result_, __LINE__), lhs, expression)
#define KVCACHE_ASSIGN_OR_RETURN_(result, lhs, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return std::move(result).TakeStatus(); \
  lhs = std::move(result).value()
