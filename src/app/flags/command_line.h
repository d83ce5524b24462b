// The program's command line: commands, their flags, and the parse that sets the flags' variables.
//
// Flags are declared first and parsed once. A variable that a flag sets must live until the parse
// is over; it keeps its value if the flag is not given. Only command_line.cc knows the flag
// library, CLI11, whose headers take seconds to compile.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvcache::app {

// Checks or parses the text of one value. Only the message of an error is shown, after the flag's
// name.
using ValueFunction = std::function<Status(const std::string& value)>;

// A declared flag or positional argument. A handle: copies name the same flag, and are valid as
// long as the CommandLine. The functions return the handle, so that calls can be chained.
class Flag {
 public:
  // Lists the flag under the heading `group` of the help text.
  Flag Group(const std::string& group) const;

  // Calls the value `name` in the help text; an empty name shows none.
  Flag ValueName(const std::string& name) const;

  // Shows the variable's present value in the help text, as the default.
  Flag ShowDefault() const;

  // Refuses values outside of [least, most]. REQUIRES: the value is an int.
  Flag Range(int min, int max) const;

  // Refuses values for which `check` returns an error. Checks run in the order of these calls.
  Flag Check(ValueFunction check) const;

  // Refuses a command line that has both flags.
  Flag Excludes(Flag other) const;

  // Refuses a command line that has this flag without `other`.
  Flag Needs(Flag other) const;

  // Returns whether the parsed command line has the flag.
  bool given() const;

 private:
  friend class FlagSet;
  explicit Flag(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// The flags of a command, or of a group in it. A handle, valid as long as the CommandLine.
//
// `names` is "--long" or "-s,--long". A name without a dash is a positional argument; those take
// words in the order of their declarations.
class FlagSet {
 public:
  // Adds a flag without a value. It sets *value to true.
  Flag AddSwitch(const std::string& names, bool* value, const std::string& help);

  // Adds a flag whose value is any text. A list gets one value each time that the flag is given.
  Flag AddText(const std::string& names, std::string* value, const std::string& help);
  Flag AddText(const std::string& names, std::optional<std::string>* value,
               const std::string& help);
  Flag AddText(const std::string& names, std::vector<std::string>* values, const std::string& help);

  // Adds a flag whose value is a number in decimal; other texts are refused (flag_checks.h).
  Flag AddNumber(const std::string& names, int* value, const std::string& help);
  Flag AddNumber(const std::string& names, float* value, const std::string& help);
  Flag AddNumber(const std::string& names, std::optional<std::uint64_t>* value,
                 const std::string& help);

  // Adds a flag whose value `parse` reads and stores. `name` is a single name.
  Flag AddParsed(const std::string& name, ValueFunction parse, const std::string& help);

  // Adds a group of flags under the heading `title`. Exactly one of them must be given.
  FlagSet AddOneOf(const std::string& title, const std::string& help);

  // Returns the flag of that name. REQUIRES: it is declared.
  Flag Find(const std::string& name);

  // Ends the help text with `text`.
  void SetFooter(const std::string& text);

  // Refuses an empty value ("$UNSET" in a script) of every flag except those in `allowed`, such as
  // "--prompt". Flags of groups have calls of their own. REQUIRES: the flags are declared.
  void RefuseEmptyValues(std::initializer_list<std::string_view> allowed);

  // Calls `check` when all flags of the command are set. Its error makes the command line wrong.
  void CheckParsed(std::function<Status()> check);

 private:
  friend class CommandLine;
  explicit FlagSet(CLI::App* app) : app_(app) {}

  CLI::App* app_;
};

enum class ParseOutcome {
  kRun,    // the command is to be run
  kShown,  // the user asked for help or for the version, which was printed
  kWrong,  // the command line is wrong; the variables of some flags may be set
};

struct ParsedLine {
  ParseOutcome outcome = ParseOutcome::kRun;
  std::string command;  // the command's name; empty if the command line has none
  std::string error;    // kWrong: what is wrong, with the name of the flag or the argument
};

class CommandLine {
 public:
  // `about` is the help text's first line, `version` what --version shows.
  CommandLine(const std::string& program, const std::string& about, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds a command. Its flags start with --help.
  FlagSet AddCommand(const std::string& name, const std::string& help);

  // Parses the words after the program's name: exactly one command, and its flags. Prints help and
  // version to standard output, and no errors. REQUIRES: all commands and flags are declared; is
  // called once.
  ParsedLine Parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace kvcache::app
