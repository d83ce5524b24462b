// Checks the values of flags, more strictly than the flag library does.
//
// Thread safety: free functions.
#pragma once

#include <initializer_list>
#include <string_view>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace kvcache::cli {

// Adds a subcommand. It belongs to `app`.
CLI::App* AddSubcommand(CLI::App& app, const char* name, const char* help);

// Adds a flag that sets *value.
void AddFlag(CLI::App& command, const char* name, bool* value, const char* help);

// Accepts a whole number in decimal. The library alone reads 010 as 8, and an empty value as 0.
CLI::Validator WholeNumber();

// Accepts a finite number in decimal.
CLI::Validator DecimalNumber();

// Refuses an empty value ("$UNSET" in a script) of every option of `command` except those in
// `allowed`, such as "--prompt". REQUIRES: the options are added.
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
