#include "make_model/architecture.h"

#include "base/strings.h"

namespace kvcache::make_model {
namespace {

constexpr Architecture kArchitectures[] = {
    {"llama", AddLlamaMetadata, LlamaTensors},
};

}  // namespace

Result<const Architecture*> FindArchitecture(std::string_view name) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
    known += StrCat(known.empty() ? "" : ", ", architecture.name);
  }
  return Status(StatusCode::kNotFound,
                StrCat("there is no architecture ", Quoted(name), ", there are: ", known));
}

}  // namespace kvcache::make_model
