// Reads the fields of a request's JSON. A field that is missing or null has its default; a wrong type
// is an error that names the field, and so is a value out of range. The first error is kept.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::server {

using Json = nlohmann::ordered_json;

// Returns the integer that a number is, also one that is written with a point or an exponent: 40.0. None: another
// value, or one that 64 bits do not hold.
std::optional<std::int64_t> IntegerOf(const Json& value);

class Fields {
 public:
  // `object` must outlive this. If it is not an object, error() says so. `defaults`: an object with the
  // values of fields that are missing or null, which must outlive this too; null: none.
  explicit Fields(const Json& object, std::string prefix = "", const Json* defaults = nullptr);

  // Returns the field's value or its default, or null if it has neither.
  const Json* Find(const char* name) const;
  bool Has(const char* name) const { return Find(name) != nullptr; }

  std::string Text(const char* name, const std::string& fallback = "");
  bool Bool(const char* name, bool fallback);
  double Number(const char* name, double fallback, double min, double max);
  std::int64_t Integer(const char* name, std::int64_t fallback, std::int64_t min, std::int64_t max);
  // A text or an array of texts; none is empty.
  std::vector<std::string> Texts(const char* name, std::size_t max);

  // Refuses the fields that are present and neither null nor `neutral`.
  void Refuse(const char* name, const Json& neutral = nullptr) { RefuseUnless(name, {neutral}); }
  // The same with several values that change nothing.
  void RefuseUnless(const char* name, std::initializer_list<Json> neutral);

  void Fail(const std::string& name, const std::string& rule);
  // Takes the error of the fields of an inner object.
  void Adopt(const Fields& inner);
  bool ok() const { return error_.ok(); }
  const Status& error() const { return error_; }
  const std::string& error_field() const { return field_; }

 private:
  const Json& object_;
  const Json* defaults_;
  std::string prefix_;
  Status error_;
  std::string field_;
};

}  // namespace kvcache::server
