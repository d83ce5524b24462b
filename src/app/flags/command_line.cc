#include "app/flags/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "app/flags/flag_checks.h"
#include "base/parse_number.h"

namespace kvcache::app {
namespace {

// Returns a check that the library's help text does not mention.
CLI::Validator Silent(ValueFunction check) {
  return {[check = std::move(check)](const std::string& value) { return check(value).message(); },
          ""};
}

}  // namespace

Flag Flag::Group(const std::string& group) const {
  return Flag(option_->group(group));
}

Flag Flag::ValueName(const std::string& name) const {
  return Flag(option_->type_name(name));
}

Flag Flag::ShowDefault() const {
  return Flag(option_->capture_default_str());
}

Flag Flag::Range(int min, int max) const {
  return Flag(option_->check(CLI::Range(min, max).description("")));
}

Flag Flag::Check(ValueFunction check) const {
  return Flag(option_->check(Silent(std::move(check))));
}

Flag Flag::Excludes(Flag other) const {
  return Flag(option_->excludes(other.option_));
}

Flag Flag::Needs(Flag other) const {
  return Flag(option_->needs(other.option_));
}

bool Flag::given() const {
  return option_->count() > 0;
}

Flag FlagSet::AddSwitch(const std::string& names, bool* value, const std::string& help) {
  return Flag(app_->add_flag(names, *value, help));
}

Flag FlagSet::AddText(const std::string& names, std::string* value, const std::string& help) {
  return Flag(app_->add_option(names, *value, help));
}

Flag FlagSet::AddText(const std::string& names, std::optional<std::string>* value,
                      const std::string& help) {
  return Flag(app_->add_option(names, *value, help));
}

// By default the library gives a list all the words up to the next flag. Words without a flag are all of the
// command's.
Flag FlagSet::AddText(const std::string& names, std::vector<std::string>* values,
                      const std::string& help) {
  return Flag(app_->add_option(names, *values, help)->allow_extra_args(!names.starts_with('-')));
}

Flag FlagSet::AddNumber(const std::string& names, int* value, const std::string& help) {
  return Flag(app_->add_option(names, *value, help)).Check(CheckWholeNumber);
}

Flag FlagSet::AddNumber(const std::string& names, float* value, const std::string& help) {
  return Flag(app_->add_option(names, *value, help)).Check(CheckDecimalNumber);
}

// The library alone reads 010 as 8.
Flag FlagSet::AddNumber(const std::string& names, std::optional<std::uint64_t>* value,
                        const std::string& help) {
  const auto set = [value](const std::string& text) {
    *value = ParseNumber<std::uint64_t>(text).value_or(0);
  };
  return Flag(app_->add_option_function<std::string>(names, set, help)).Check(CheckUnsignedNumber);
}

// A callback of the library reports an error by throwing it; Parse catches it.
Flag FlagSet::AddParsed(const std::string& name, ValueFunction parse, const std::string& help) {
  const auto set = [name, parse = std::move(parse)](const std::string& value) {
    const Status status = parse(value);
    if (!status.ok()) throw CLI::ValidationError(name, status.message());
  };
  return Flag(app_->add_option_function<std::string>(name, set, help));
}

FlagSet FlagSet::AddOneOf(const std::string& title, const std::string& help) {
  return FlagSet(app_->add_option_group(title, help)->require_option(1));
}

Flag FlagSet::Find(const std::string& name) {
  return Flag(app_->get_option(name));
}

void FlagSet::SetFooter(const std::string& text) {
  app_->footer(text);
}

void FlagSet::RefuseEmptyValues(std::initializer_list<std::string_view> allowed) {
  for (CLI::Option* const option : app_->get_options(std::function<bool(CLI::Option*)>())) {
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool may_be_empty =
        std::find(allowed.begin(), allowed.end(), option->get_name()) != allowed.end();
    if (takes_value && !may_be_empty) (void)Flag(option).Check(CheckNotEmpty);
  }
}

void FlagSet::CheckParsed(std::function<Status()> check) {
  app_->final_callback([check = std::move(check)] {
    const Status status = check();
    if (!status.ok()) throw CLI::ValidationError(status.message());
  });
}

CommandLine::CommandLine(const std::string& program, const std::string& about,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(about, program)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

FlagSet CommandLine::AddCommand(const std::string& name, const std::string& help) {
  return FlagSet(app_->add_subcommand(name, help));
}

ParsedLine CommandLine::Parse(const std::vector<std::string>& arguments) {
  ParsedLine line;
  try {
    // The library takes the first argument from the end.
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // --help, --version
    if (asked) (void)app_->exit(error);
    line.outcome = asked ? ParseOutcome::kShown : ParseOutcome::kWrong;
    line.error = asked ? "" : error.what();
  }
  for (const CLI::App* const command : app_->get_subcommands()) {
    line.command += (line.command.empty() ? "" : " ") + command->get_name();
  }
  return line;
}

}  // namespace kvcache::app
