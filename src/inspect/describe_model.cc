#include "inspect/describe_model.h"

#include <memory>

#include "kvcache/cpu_backend.h"

namespace kvcache {

Result<ModelInfo> DescribeModel(const GgufFile& file) {
  const std::unique_ptr<Backend> backend = MakeShapeBackend();
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(file, *backend));
  return model->info();
}

}  // namespace kvcache
