#include "convert/hf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/hf_directory.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

std::string Shown(const json& value) {
  return Quoted(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

Result<HfConfig> HfConfig::Read(const HfDirectory& directory, std::string_view name) {
  KVCACHE_ASSIGN_OR_RETURN(json value, directory.ReadJson(name, kMaxConfigBytes));
  return Make(std::move(value), StrCat(directory.path(), "/", name));
}

Result<HfConfig> HfConfig::Make(json value, std::string place) {
  if (!value.is_object()) return Corrupt(place + ": it is not a JSON object");
  HfConfig config;
  config.document_ = std::make_shared<const json>(std::move(value));
  config.object_ = config.document_.get();
  config.place_ = std::move(place);
  return config;
}

const json* HfConfig::Find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool HfConfig::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

bool HfConfig::HasNull(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && found->is_null();
}

bool HfConfig::HasObjects() const {
  return std::any_of(object_->begin(), object_->end(),
                     [](const json& value) { return value.is_object(); });
}

Result<const json*> HfConfig::Require(std::string_view key) const {
  if (const json* found = Find(key)) return found;
  return NotFound(StrCat(place_, ": ", key, " is missing"));
}

Status HfConfig::Wrong(std::string_view key, std::string_view rule) const {
  return Corrupt(StrCat(place_, ": ", key, " is ", Shown(*Find(key)), "; must be ", rule));
}

Status HfConfig::Refuse(std::string_view key, std::string_view rule) const {
  const json* found = Find(key);
  return Unsupported(
      StrCat(place_, ": ", key, " is ", found == nullptr ? "missing" : Shown(*found), "; ", rule));
}

Result<std::int64_t> HfConfig::Int(std::string_view key, std::int64_t min, std::int64_t max) const {
  KVCACHE_ASSIGN_OR_RETURN(const json* value, Require(key));
  // Some writers give whole numbers as floats.
  const bool whole = value->is_number_float() && std::abs(value->get<double>()) < 1e15 &&
                     std::floor(value->get<double>()) == value->get<double>();
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() < (1ull << 62));
  if (whole || fits) {
    const std::int64_t number =
        whole ? static_cast<std::int64_t>(value->get<double>()) : value->get<std::int64_t>();
    if (number >= min && number <= max) return number;
  }
  return Wrong(key, StrCat("a whole number from ", min, " to ", max));
}

Result<std::int64_t> HfConfig::IntOr(std::string_view key, std::int64_t otherwise, std::int64_t min,
                                     std::int64_t max) const {
  if (!Has(key)) return otherwise;
  return Int(key, min, max);
}

Result<double> HfConfig::FloatOr(std::string_view key, double otherwise,
                                 const HfRange& range) const {
  const json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= range.min && number <= range.max) return number;  // false for NaN
  }
  return Wrong(key, range.rule);
}

Result<bool> HfConfig::BoolOr(std::string_view key, bool otherwise) const {
  const json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  return Wrong(key, "true or false");
}

Result<std::string> HfConfig::StringOr(std::string_view key, std::string_view otherwise) const {
  const json* value = Find(key);
  if (value == nullptr) return std::string(otherwise);
  if (value->is_string()) return value->get<std::string>();
  return Wrong(key, "a text");
}

Result<std::vector<std::string>> HfConfig::Strings(std::string_view key) const {
  std::vector<std::string> texts;
  const json* value = Find(key);
  if (value == nullptr) return texts;
  if (!value->is_array()) return Wrong(key, "an array of texts");
  for (const json& text : *value) {
    if (!text.is_string()) return Wrong(key, "an array of texts");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

Result<std::optional<HfConfig>> HfConfig::Object(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<HfConfig>();
  if (!value->is_object()) return Wrong(key, "an object");
  HfConfig config = *this;
  config.object_ = value;
  config.place_ = StrCat(place_, ": ", key);
  return std::optional<HfConfig>(std::move(config));
}

}  // namespace kvcache
