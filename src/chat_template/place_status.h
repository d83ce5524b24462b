// Adds line and column to the errors of values and built-ins.
//
// Thread safety: free functions.
#pragma once

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/syntax/lexer.h"

namespace kvcache::jinja {

inline Status At(Place place, Status status) {
  // Errors inside a called macro already have a place.
  if (status.ok() || status.message().starts_with("line ")) return status;
  return std::move(status).WithContext(PlaceText(place));
}

template <typename T>
Result<T> At(Place place, Result<T> result) {
  if (result.ok()) return result;
  return At(place, std::move(result).TakeStatus());
}

inline Status TooDeep(Place place) {
  return Unsupported(
      StrCat(PlaceText(place), ": macros, tags and expressions are nested too deep"));
}

}  // namespace kvcache::jinja
