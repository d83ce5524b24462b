// What sentence-transformers adds to a model: modules.json, and a folder with the settings of each module.
//
//   [{"type": "…Transformer", "path": ""}, {"type": "…Pooling", "path": "1_Pooling"}, {"type": "…Dense", …}, …]
//
// Source: sentence-transformers, models/Pooling.py and models/Dense.py. Thread safety: free functions.
#pragma once

#include <memory>
#include <vector>

#include "convert/hf_directory.h"
#include "convert/hf_import.h"
#include "convert/hf_weights.h"
#include "convert/tensor_writer.h"
#include "kvcache/status.h"

namespace kvcache {

// Dense layers: their tensors, and the files that hold these.
struct HfModules {
  std::vector<std::unique_ptr<HfWeights>> weights;
  std::vector<TensorPlan> plans;
};

// Sets the keys of the pooling and of dense layers, if the directory has modules.json, and import.embeds. Does nothing for a
// reranker, whose class says all. `hidden`: the values
// of a state. Errors name the file and what is not supported: other poolings and modules, dense layers of other
// architectures than gemma-embedding.
Result<HfModules> AddHfModules(const HfDirectory& directory, HfImport& import, std::int64_t hidden);

}  // namespace kvcache
