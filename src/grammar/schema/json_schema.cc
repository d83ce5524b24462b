#include "grammar/schema/json_schema.h"

#include "grammar/schema/compiler.h"

namespace kvcache {

Result<GrammarSymbol> AddJsonSchema(const nlohmann::ordered_json& schema, GrammarBuilder& builder) {
  return SchemaCompiler(schema, builder).Value({&schema}, "#", 0);
}

}  // namespace kvcache
