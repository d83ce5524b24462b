#include "app/flags/flag_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"

namespace kvcache::app {
namespace {

Status Invalid(std::string_view value, std::string_view rule) {
  return InvalidArgument(StrCat(Quoted(value), " is not ", rule));
}

}  // namespace

Status CheckWholeNumber(std::string_view value) {
  const std::string_view digits = value.substr(value.starts_with('-') ? 1 : 0);
  const bool decimal = !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; });
  if (decimal && (digits.size() == 1 || digits.front() != '0')) return Status::Ok();
  return Invalid(value, "a whole number in decimal");
}

Status CheckUnsignedNumber(std::string_view value) {
  if (ParseNumber<std::uint64_t>(value)) return Status::Ok();
  return Invalid(value, "a whole number from 0 to 2^64 - 1");
}

Status CheckDecimalNumber(std::string_view value) {
  const auto number = ParseNumber<double>(value);
  if (number && std::isfinite(*number)) return Status::Ok();
  return Invalid(value, "a number in decimal");
}

Status CheckNotEmpty(std::string_view value) {
  if (!value.empty()) return Status::Ok();
  return InvalidArgument("its value is empty");
}

Status CheckOneStandardInput(std::initializer_list<FileFlag> flags) {
  std::string_view reader;
  for (const FileFlag& flag : flags) {
    if (flag.value != "-") continue;
    if (!reader.empty()) {
      return InvalidArgument(StrCat("standard input cannot be read by both ", reader, " and ",
                                    flag.name, ": give one of them a file"));
    }
    reader = flag.name;
  }
  return Status::Ok();
}

}  // namespace kvcache::app
