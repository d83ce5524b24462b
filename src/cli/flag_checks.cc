#include "cli/flag_checks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <string>

#include "base/strings.h"

namespace kvcache::cli {
namespace {

std::string WholeNumberError(const std::string& text) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = std::string_view(text).substr(negative ? 1 : 0);
  const bool decimal = !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; });
  if (decimal && (digits.size() == 1 || digits.front() != '0')) return {};
  return StrCat(Quoted(text), " is not a whole number in decimal");
}

std::string DecimalNumberError(const std::string& text) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && std::isfinite(number)) return {};
  return StrCat(Quoted(text), " is not a number in decimal");
}

std::string EmptyError(const std::string& text) {
  return text.empty() ? "its value is empty" : "";
}

}  // namespace

CLI::App* AddSubcommand(CLI::App& app, const char* name, const char* help) {
  return app.add_subcommand(name, help);
}

void AddFlag(CLI::App& command, const char* name, bool* value, const char* help) {
  command.add_flag(name, *value, help);
}

CLI::Validator WholeNumber() {
  return {WholeNumberError, ""};
}

CLI::Validator DecimalNumber() {
  return {DecimalNumberError, ""};
}

void RefuseEmptyValues(CLI::App& command, std::initializer_list<std::string_view> allowed) {
  for (CLI::Option* const option : command.get_options(std::function<bool(CLI::Option*)>())) {
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool may_be_empty =
        std::find(allowed.begin(), allowed.end(), option->get_name()) != allowed.end();
    if (takes_value && !may_be_empty) option->check(CLI::Validator(EmptyError, ""));
  }
}

void CheckOneStandardInput(std::initializer_list<FileFlag> flags) {
  std::string_view reader;
  for (const FileFlag& flag : flags) {
    if (flag.value != "-") continue;
    if (!reader.empty()) {
      throw CLI::ValidationError(StrCat("standard input cannot be read by both ", reader, " and ",
                                        flag.name, ": give one of them a file"));
    }
    reader = flag.name;
  }
}

}  // namespace kvcache::cli
