// What the benchmark programs share: options, times, and the file of their results.
//
// Thread safety: none.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "machine_limits.h"
#include "platform/thread_pool.h"

namespace kvcache::bench {

struct ProgramOptions {
  int threads = AvailableProcessors();
  int rounds = 15;
  std::string target;  // that was asked for
  std::regex filter{"."};
  std::string json;
  Clock clock = Clock::kWall;

  bool Wants(const std::string& name) const { return std::regex_search(name, filter); }
  nlohmann::json Settings() const;
};

// Adds --threads, --rounds, --target, --filter, --json and --clock; `options` holds the defaults.
// The target is set while the command line is parsed.
void AddOptions(CLI::App& app, ProgramOptions& options);

// Seconds of one call.
struct Timing {
  double best = 0.0;
  double median = 0.0;
  double p99 = 0.0;

  // REQUIRES: seconds is not empty.
  explicit Timing(std::vector<double> seconds);

  // A case's keys, in milliseconds.
  nlohmann::json Json() const;
};

// A program's facts about the machine and its own build.
nlohmann::json MachineFacts(int threads);

struct BenchResult {
  std::string bench;
  nlohmann::json machine;
  nlohmann::json settings;
  nlohmann::json cases;
};

// Writes the format of bench/README.md to `path`, or nothing if it is empty. Returns whether that
// succeeded.
bool WriteResult(const std::string& path, const BenchResult& result);

}  // namespace kvcache::bench
