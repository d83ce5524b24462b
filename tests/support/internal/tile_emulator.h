// Runs the kernels of the target AMX on processors without tiles: a handler of the signal for unknown instructions
// does what the instruction would, in a microsecond or two. On a machine that has tiles nothing is installed.
//
// A fault of an instruction is written to stderr, and the process ends as it would on a processor.
//
// Thread safety: each thread has tiles of its own. EmulateTiles is called while no kernel runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcache::testing {

// Makes UseCpuTarget("AMX") work on this machine. Returns false if it cannot: the kernels' vectors are missing, or the
// system is not Linux on x86-64.
bool EmulateTiles();

// How many instructions were emulated; 0 on a machine that has tiles.
std::int64_t EmulatedTileInstructions();

// The instruction sets that tests of kernels run: those of the machine, and AMX if it can be emulated.
std::vector<std::string> TestedTargets();

}  // namespace kvcache::testing
