// Whether the identity of a file (file_identity.h) stands for its bytes.
//
// Thread safety: free functions.
#pragma once

#include "platform/file_identity.h"

namespace kvcache {

// Returns whether the file changed so long ago that a later change gives it another time. What is kept under the
// identity of a file that did not settle may be found for other bytes.
bool IsSettled(const FileIdentity& identity);

}  // namespace kvcache
