#include "grammar/schema/form.h"

#include "base/strings.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/scalars.h"

namespace kvcache {

Status CheckSchemaForm(const nlohmann::ordered_json& schema, const std::string& place) {
  for (const auto& [key, value] : schema.items()) {
    const SchemaKeyword* const known = FindKeyword(key);
    if (known == nullptr || HasForm(value, known->form)) continue;
    return SchemaError(place, StrCat("has ", Quoted(key), " that is not ", NameOf(known->form)));
  }
  return Status::Ok();
}

}  // namespace kvcache
