// A cache must not see the processor's backend: any backend serves it.
#include "backend/cpu/cpu_backend.h"
