// Typed values of a JSON object, such as config.json. Errors name the file, the key, its value and
// the rule.
//
// A key whose value is null counts as missing.
//
// Thread safety: const calls from any number of threads. Copies share the JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

class HfDirectory;

// The numbers that a key may have.
struct HfRange {
  double min, max;
  std::string_view rule;  // ends "must be "
};
// Outside of these bounds a number would be 0 or infinite as an f32, or its square root or reciprocal.
inline constexpr HfRange kHfPositive{1e-30, 1e30, "a number above 0 (from 1e-30 to 1e30)"};
inline constexpr HfRange kHfNotNegative{0.0, 1e30, "a number from 0 to 1e30"};

class HfConfig {
 public:
  // Reads a file of the directory. Errors: those of ReadJson; kCorrupt: it is not an object.
  static Result<HfConfig> Read(const HfDirectory& directory, std::string_view name);
  // Takes a parsed value; `place` begins all messages.
  static Result<HfConfig> Make(nlohmann::json value, std::string place);

  bool Has(std::string_view key) const;
  // Returns whether the key is there and its value is null.
  bool HasNull(std::string_view key) const;

  // Returns the value of a key. Errors: kNotFound: it is missing; kCorrupt: it has another type or
  // is out of range. The ...Or calls return `otherwise` for a missing key.
  Result<std::int64_t> Int(std::string_view key, std::int64_t min, std::int64_t max) const;
  Result<std::int64_t> IntOr(std::string_view key, std::int64_t otherwise, std::int64_t min,
                             std::int64_t max) const;
  Result<double> FloatOr(std::string_view key, double otherwise, const HfRange& range) const;
  Result<bool> BoolOr(std::string_view key, bool otherwise) const;
  Result<std::string> StringOr(std::string_view key, std::string_view otherwise) const;
  // Empty if the key is missing.
  Result<std::vector<std::string>> Strings(std::string_view key) const;

  // Returns the object under a key; empty if it is missing. Errors: kCorrupt: it is no object.
  Result<std::optional<HfConfig>> Object(std::string_view key) const;

  // Returns whether the value of any key is an object.
  bool HasObjects() const;

  // Returns the JSON of a key; nullptr if it is missing.
  const nlohmann::json* Find(std::string_view key) const;

  // Returns kUnsupported: "FILE: KEY is VALUE; RULE".
  Status Refuse(std::string_view key, std::string_view rule) const;

  const nlohmann::json& object() const { return *object_; }
  const std::string& place() const { return place_; }

 private:
  HfConfig() = default;  // for Make and Read
  Result<const nlohmann::json*> Require(std::string_view key) const;
  Status Wrong(std::string_view key, std::string_view rule) const;

  std::shared_ptr<const nlohmann::json> document_;
  const nlohmann::json* object_ = nullptr;
  std::string place_;  // the file, and the keys that lead to the object
};

}  // namespace kvcache
