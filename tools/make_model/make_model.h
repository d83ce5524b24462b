// Makes a model file of random weights, for tests and benchmarks.
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
  DType type = DType::kF32;  // of the matrices, as far as `mix` and their widths let them
  Mix mix = Mix::kPure;
  std::uint64_t seed = 1;
  int threads = 0;                               // 0: one per core; the file does not depend on it
  std::string chat_template = {};                // its text; empty: none
  std::vector<std::string> control_tokens = {};  // texts, in place of the last tokens
};

// The bytes of the file at `path` are a function of the request without `threads`. Takes a few
// megabytes of memory per thread. Errors: kInvalidArgument and kNotFound for what cannot be
// asked, those of GgufWriter for what cannot be written; then there is no file.
Status MakeModel(const Request& request, const std::string& path);

}  // namespace kvcache::make_model
