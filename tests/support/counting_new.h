// Counts every `new` of the program, and makes one fail on demand.
//
// A program that calls one of these has its operator new replaced, and counts all that is
// allocated through it, on any thread.
//
// Thread safety: counting is; asking for a failure is for one thread at a time.
#pragma once

#include <cstdint>

namespace kvcache::testing {

// Allocations so far.
std::int64_t Allocations();

// The n-th allocation from now fails (1: the next) with std::bad_alloc; 0: none does.
void FailAllocation(int n);
// Is it still to come?
bool AllocationFailurePending();

}  // namespace kvcache::testing
