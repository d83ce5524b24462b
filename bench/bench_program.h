// The common parts of the benchmark programs: options, times, and the file of results.
//
// Thread safety: none.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "machine_limits.h"
#include "platform/processors.h"

namespace kvcache::bench {

struct ProgramOptions {
  int threads = FindProcessorLimits().DefaultThreads();
  int rounds = 15;
  std::string target;  // the argument of --target
  std::regex filter{"."};
  std::string json;
  Clock clock = Clock::kWall;

  bool Wants(const std::string& name) const { return std::regex_search(name, filter); }
  nlohmann::json Settings() const;
};

// Adds --threads, --rounds, --target, --filter, --json and --clock. `options` holds the defaults.
// Parsing the command line sets the target.
void AddOptions(CLI::App& app, ProgramOptions& options);

// Times of one call, in seconds.
struct Timing {
  double best = 0.0;
  double median = 0.0;
  double p99 = 0.0;

  // REQUIRES: seconds is not empty.
  explicit Timing(std::vector<double> seconds);

  // Returns the times as keys of a case, in milliseconds.
  nlohmann::json Json() const;
};

// Ends the program with a message.
[[noreturn]] void Fail(const std::string& why);

// Ends the program with the message of an error.
void Require(const Status& status);
template <class T>
T Require(Result<T> result) {
  if (!result.ok()) Fail(result.status().message());
  return std::move(result).value();
}

// Returns facts about the machine and the program's build.
nlohmann::json MachineFacts(int threads);

struct BenchResult {
  std::string bench;
  nlohmann::json machine;
  nlohmann::json settings;
  nlohmann::json cases;
};

// Writes a file in the format of bench/README.md; writes nothing if `path` is empty. Returns
// whether that succeeded.
bool WriteResult(const std::string& path, const BenchResult& result);

}  // namespace kvcache::bench
