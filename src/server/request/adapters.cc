#include "server/request/adapters.h"

#include <cmath>
#include <string>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

std::vector<AdapterUse> UsesOf(const std::vector<float>& scales) {
  std::vector<AdapterUse> uses;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] != 0.0f) uses.push_back({static_cast<int>(i), scales[i]});
  }
  return uses;
}

}  // namespace

Result<std::vector<float>> ReadAdapterScales(std::size_t count, const Json& list,
                                             const char* field) {
  const auto wrong = [&](const std::string& rule) {
    return InvalidArgument(StrCat("'", field, "' ", rule));
  };
  if (!list.is_array()) {
    return wrong(StrCat("is ", OneLine(list.dump()),
                        "; must be an array of objects with an 'id' and a 'scale'"));
  }
  std::vector<float> scales(count, 0.0f);
  std::vector<bool> is_named(count);
  for (const Json& entry : list) {
    const Json id = entry.is_object() ? entry.value("id", Json()) : Json();
    const std::int64_t index = IntegerOf(id).value_or(-1);
    if (index < 0 || index >= static_cast<std::int64_t>(count)) {
      return wrong(StrCat("has an entry with 'id' ", OneLine(id.dump()), "; the model has ", count,
                          count == 1 ? " adapter" : " adapters"));
    }
    const auto at = static_cast<std::size_t>(index);
    if (is_named[at]) return wrong(StrCat("has 'id' ", index, " twice"));
    is_named[at] = true;
    const Json scale = entry.value("scale", Json(0.0));
    const double value = scale.is_number() ? scale.get<double>() : NAN;
    if (!(std::abs(value) <= static_cast<double>(kMaxAdapterScale))) {  // or no number
      return wrong(StrCat("has for 'id' ", index, " the 'scale' ", OneLine(scale.dump()),
                          "; must be a number from -", kMaxAdapterScale, " to ", kMaxAdapterScale));
    }
    scales[at] = static_cast<float>(value);
  }
  return scales;
}

Result<std::vector<AdapterUse>> AdaptersOf(const ModelService& service, const ServedModel& model,
                                           const Json& body) {
  if (const auto lora = body.find("lora"); lora != body.end() && !lora->is_null()) {
    KVCACHE_ASSIGN_OR_RETURN(const auto scales,
                             ReadAdapterScales(service.adapters().size(), *lora, "lora"));
    return UsesOf(scales);
  }
  if (model.adapter < 0) return UsesOf(service.scales()->Get());
  const float own = model.adapters[static_cast<std::size_t>(model.adapter)].scale;
  return std::vector<AdapterUse>{{model.adapter, own == 0.0f ? 1.0f : own}};
}

}  // namespace kvcache::server
