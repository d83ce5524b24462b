// The cache layer sees the layers below it and the public headers.
#include "base/strings.h"
#include "cache/cells/cell_table.h"
#include "kvcache/kv_backend.h"
#include "tensor/float_conversion.h"
