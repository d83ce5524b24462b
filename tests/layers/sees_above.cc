// The cache layer must not see the CPU backend, because a cache works over any backend.
#include "backend/cpu/cpu_backend.h"
