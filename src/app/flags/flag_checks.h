// Checks the values of flags, more strictly than the flag library does.
//
// Errors are kInvalidArgument. Those of one value quote it, or say that it is empty, without the
// flag's name.
//
// Thread safety: free functions.
#pragma once

#include <initializer_list>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache::app {

// Accepts a whole number in decimal. The library alone reads 010 as 8, and an empty value as 0.
Status CheckWholeNumber(std::string_view value);

// Accepts the digits of a number from 0 to 2^64 - 1. The library alone reads "-1" and larger
// numbers as other numbers.
Status CheckUnsignedNumber(std::string_view value);

// Accepts a finite number in decimal.
Status CheckDecimalNumber(std::string_view value);

// Accepts any text but the empty one.
Status CheckNotEmpty(std::string_view value);

// A flag whose value "-" means standard input.
struct FileFlag {
  std::string_view name;
  std::string_view value;
};

// Returns an error that names both, if two of `flags` are "-": standard input can be read once.
Status CheckOneStandardInput(std::initializer_list<FileFlag> flags);

}  // namespace kvcache::app
