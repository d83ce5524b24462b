// The times of AMX's instructions, alone and in the order in which linear layers use them. They show which unit a kernel
// waits for: docs/design/block-weights.md estimates its cycles from them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "amx/tile_instructions.h"
#include "bench_program.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::bench {
namespace {

#if defined(__x86_64__)

// Instructions in the place of `%0` have memory at that register, rows 64 bytes apart.
#define KVCACHE_LOOP(Name, text)                                                 \
  void Name(std::byte* memory, std::int64_t bytes, std::int64_t steps) {         \
    for (std::int64_t i = 0, at = 0; i < steps; ++i) {                           \
      asm volatile(text : : "r"(memory + at), "r"(std::int64_t{64}) : "memory"); \
      at = at + 4 * kTileBytes < bytes ? at + 4 * kTileBytes : 0;                \
    }                                                                            \
  }

KVCACHE_LOOP(Multiply, KVCACHE_FOUR_TILE_PRODUCTS)
KVCACHE_LOOP(Load,
             "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd 1024(%0,%1,1), %%tmm5\n\t"
             "tileloadd 2048(%0,%1,1), %%tmm6\n\ttileloadd 3072(%0,%1,1), %%tmm7")
KVCACHE_LOOP(Store,
             "tilestored %%tmm0, (%0,%1,1)\n\ttilestored %%tmm1, 1024(%0,%1,1)\n\t"
             "tilestored %%tmm2, 2048(%0,%1,1)\n\ttilestored %%tmm3, 3072(%0,%1,1)")
KVCACHE_LOOP(Zero, "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3")
// Two scales of two panels, without what folds their sums. The sums share no line with the factors.
KVCACHE_LOOP(MultiplyScales,
             "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd 1024(%0,%1,1), %%tmm6\n\t"
             "tilezero %%tmm0\n\ttdpbssd %%tmm6, %%tmm4, %%tmm0\n\t"
             "tileloadd 1536(%0,%1,1), %%tmm7\n\t"
             "tilezero %%tmm1\n\ttdpbssd %%tmm7, %%tmm4, %%tmm1\n\t"
             "tilestored %%tmm0, 4096(%0,%1,1)\n\ttilestored %%tmm1, 5120(%0,%1,1)\n\t"
             "tileloadd (%0,%1,1), %%tmm5\n\ttileloadd 1024(%0,%1,1), %%tmm6\n\t"
             "tilezero %%tmm2\n\ttdpbssd %%tmm6, %%tmm5, %%tmm2\n\t"
             "tileloadd 1536(%0,%1,1), %%tmm7\n\t"
             "tilezero %%tmm3\n\ttdpbssd %%tmm7, %%tmm5, %%tmm3\n\t"
             "tilestored %%tmm2, 4096(%0,%1,1)\n\ttilestored %%tmm3, 5120(%0,%1,1)")
#undef KVCACHE_LOOP

// A chain of additions, each of which takes a cycle.
void Count(std::int64_t steps) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    asm volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0" : "+r"(sum));
  }
}

struct Case {
  std::string name;
  int rows;
  int inputs;
  void (*run)(std::byte*, std::int64_t, std::int64_t);
  std::int64_t bytes;  // that it reads or writes again and again
  bool multiplies;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int rows : {16, 8}) {
    for (const int inputs : {64, 32, 16}) {
      const std::string shape =
          " rows " + std::to_string(rows) + " inputs " + std::to_string(inputs);
      cases.push_back({"tdpbssd" + shape, rows, inputs, Multiply, 4 * kTileBytes, true});
      cases.push_back({"scale" + shape, rows, inputs, MultiplyScales, 4 * kTileBytes, true});
    }
  }
  cases.push_back({"tileloadd first-level cache", 16, 64, Load, 16 << 10, false});
  cases.push_back({"tileloadd second-level cache", 16, 64, Load, 512 << 10, false});
  cases.push_back({"tilestored", 16, 64, Store, 16 << 10, false});
  cases.push_back({"tilezero", 16, 64, Zero, 4 * kTileBytes, false});
  return cases;
}

constexpr std::int64_t kSteps = 100'000;
constexpr int kOfStep = 4;  // instructions, or sums

// Nanoseconds of a cycle.
double Cycle(const ProgramOptions& options) {
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    const double start = Seconds(options.clock);
    Count(10 * kSteps);
    seconds.push_back(Seconds(options.clock) - start);
  }
  return Timing(std::move(seconds)).best / (10.0 * kSteps * kOfStep) * 1e9;
}

nlohmann::json Measure(const Case& c, const ProgramOptions& options) {
  // MultiplyScales stores behind the bytes that it loads.
  std::vector<std::byte> memory(static_cast<std::size_t>(c.bytes + 4 * kTileBytes) + 64,
                                std::byte{1});
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* const aligned = memory.data() + (64 - address % 64) % 64;
  const TilesOfShape tiles(c.rows, c.inputs);
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    const double start = Seconds(options.clock);
    c.run(aligned, c.bytes, kSteps);
    seconds.push_back(Seconds(options.clock) - start);
  }
  const Timing timing(std::move(seconds));
  const double each = timing.best / (kSteps * kOfStep) * 1e9;
  const double cycles = each / Cycle(options);
  nlohmann::json json = timing.Json();
  json.update({{"name", c.name}, {"kind", "tile"}, {"ns", each}, {"cycles", cycles}});
  std::printf("%-32s %8.2f ns %8.1f cycles", c.name.c_str(), each, cycles);
  if (c.multiplies) {
    json["rate"] = 2.0 * c.rows * 16 * c.inputs / each;
    json["unit"] = "GOP/s";
    json["rate_of"] = "best";
    std::printf(" %8.1f GOP/s", json["rate"].get<double>());
  }
  std::printf("\n");
  return json;
}

nlohmann::json MeasureAll(const ProgramOptions& options) {
  nlohmann::json results = nlohmann::json::array();
  for (const Case& c : Cases()) {
    if (options.Wants(c.name)) results.push_back(Measure(c, options));
  }
  return results;
}

#else
nlohmann::json MeasureAll(const ProgramOptions&) {
  return nlohmann::json::array();
}
#endif

int Run(const ProgramOptions& options) {
  if (CpuTargetName() != "AMX") Fail("the instruction set in use is " + CpuTargetName());
  const bool written = WriteResult(
      options.json, {"tiles", MachineFacts(1), options.Settings(), MeasureAll(options)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  kvcache::bench::ProgramOptions options;
  CLI::App app(
      "Times the instructions of AMX's tiles on one thread, each and as linear layers use them");
  kvcache::bench::AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  return kvcache::bench::Run(options);
}
