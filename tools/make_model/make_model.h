// Writes a model file with random weights, for tests and benchmarks.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"
#include "make_model/mixture.h"
#include "make_model/shape.h"

namespace kvcache::make_model {

struct Request {
  std::string architecture = "llama";
  Shape shape = {};
  DType type = DType::kF32;  // of the matrices, unless `mix` or their row sizes need another
  Mix mix = Mix::kPure;
  std::uint64_t seed = 1;
  int threads = 0;                               // 0: one per core; the file does not depend on it
  std::string chat_template = {};                // text; empty: none
  std::vector<std::string> control_tokens = {};  // texts that replace the last tokens
};

// Writes the file at `path`. Its bytes depend on the request alone, without `threads`. Needs a few
// megabytes of memory per thread. Errors: kInvalidArgument and kNotFound for an impossible request,
// GgufWriter's for writing. After an error there is no file at `path`.
Status MakeModel(const Request& request, const std::string& path);

}  // namespace kvcache::make_model
