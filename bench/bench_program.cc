#include "bench_program.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "backend/cpu/cpu_target.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::bench {
namespace {

// Reads the environment before it sets the target, because the environment is read once per process
// and would replace the target later.
void UseTarget(const std::string& name) {
  Status status = cpu::UseCpuTargetFromEnvironment();
  if (status.ok() && !name.empty()) status = cpu::UseCpuTarget(name).WithContext("--target");
  if (!status.ok()) throw CLI::ValidationError(status.message());
}

std::regex Pattern(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw CLI::ValidationError("--filter", error.what());
  }
}

}  // namespace

nlohmann::json ProgramOptions::Settings() const {
  return {{"rounds", rounds}, {"clock", clock == Clock::kWall ? "wall" : "cpu"}};
}

void Fail(const std::string& why) {
  (void)std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::exit(1);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

void AddOptions(CLI::App& app, ProgramOptions& options) {
  // `./dev bench NAME -- ARGS` appends ARGS to its own options, so the last option takes effect.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--threads", options.threads, "number of threads, including the caller")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "number of measurements of a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
      "--target", options.target,
      "instruction set of the kernels and of the limits, such as AVX2 (default: the best)");
  app.final_callback([&options] { UseTarget(options.target); });
  app.add_option_function<std::string>(
      "--filter", [&options](const std::string& text) { options.filter = Pattern(text); },
      "run only the cases whose names match this regular expression");
  app.add_option("--json", options.json, "also write the results to this file (bench/README.md)");
  app.add_option("--clock", options.clock,
                 "wall, or cpu: processor time, for one thread on a busy machine")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Clock>{{"wall", Clock::kWall}, {"cpu", Clock::kProcessor}}));
}

Timing::Timing(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  best = seconds.front();
  median = seconds[n / 2];
  p99 = seconds[std::min(n - 1, n * 99 / 100)];
}

nlohmann::json Timing::Json() const {
  return {{"best_ms", best * 1e3}, {"median_ms", median * 1e3}, {"p99_ms", p99 * 1e3}};
}

nlohmann::json MachineFacts(int threads) {
#ifdef NDEBUG
  const char* const asserts = "off";
#else
  const char* const asserts = "on";
#endif
  return {{"threads", threads},
          {"target", CpuTargetName()},
          {"targets", CpuTargetNames()},
          {"compiler", __VERSION__},
          {"asserts", asserts}};
}

bool WriteResult(const std::string& path, const BenchResult& result) {
  if (path.empty()) return true;
  std::ofstream out(path);
  out << nlohmann::json{{"format", "kvcache-bench 1"},
                        {"bench", result.bench},
                        {"machine", result.machine},
                        {"settings", result.settings},
                        {"cases", result.cases}}
             .dump(1)
      << "\n";
  out.flush();
  if (!out.good()) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return out.good();
}

}  // namespace kvcache::bench
