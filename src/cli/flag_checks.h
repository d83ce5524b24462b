// Checks of what flags are given, stricter than the flag library's own.
//
// Thread safety: free functions.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string_view>

namespace kvcache::cli {

// A whole number in decimal: the library reads 010 as 8, and nothing as 0.
CLI::Validator WholeNumber();

// A finite number in decimal.
CLI::Validator DecimalNumber();

// Refuses an empty value ("$UNSET" in a script) of every option of `command` but those in
// `allowed`, such as "--prompt". Call it after the options are added.
void RefuseEmptyValues(CLI::App& command, std::initializer_list<std::string_view> allowed);

// A flag whose value "-" means standard input.
struct FileFlag {
  std::string_view name;
  std::string_view value;
};

// Throws CLI::ValidationError, naming both, if two of `flags` are "-": standard input can be read
// once.
void CheckOneStandardInput(std::initializer_list<FileFlag> flags);

}  // namespace kvcache::cli
