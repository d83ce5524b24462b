// Counts every call of operator new, on any thread, and makes one of them fail on demand.
//
// A program that calls one of these functions links replacements of operator new.
//
// Thread safety: counting is safe; one thread at a time may ask for a failure.
#pragma once

#include <cstdint>

namespace kvcache::testing {

// Returns the number of allocations so far.
std::int64_t AllocationCount();

// Makes the n-th allocation from now (1: the next; 0: none) throw std::bad_alloc.
void FailAllocation(int n);
// Returns whether the failure that FailAllocation asked for has not happened yet.
bool AllocationFailurePending();

}  // namespace kvcache::testing
