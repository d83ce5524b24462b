#include "model/load/key_reader.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Settings of the file, of the training or of another use of the weights. They do not affect a
// pass.
constexpr std::string_view kIgnoredKeys[] = {"vocab_size", "tensor_data_layout", "pooling_type",
                                             "attention.layer_norm_epsilon"};

std::string ValueText(const GgufEntry& entry) {
  if (entry.type == GgufType::kArray) {
    return StrCat("an array of ", entry.count, " ", GgufTypeName(entry.element));
  }
  switch (entry.type) {
    case GgufType::kString: return Quoted(*GgufStrings(entry).begin());
    case GgufType::kFloat32: return StrCat(static_cast<float>(GgufFloatAt(entry, 0)));
    case GgufType::kFloat64: return StrCat(GgufFloatAt(entry, 0));
    case GgufType::kBool: return GgufIntAt(entry, 0) != 0 ? "true" : "false";
    default: return StrCat(GgufIntAt(entry, 0));
  }
}

bool IsOff(const GgufEntry& entry) {
  switch (entry.type) {
    case GgufType::kArray:
    case GgufType::kString: return false;
    case GgufType::kFloat32:
    case GgufType::kFloat64: return GgufFloatAt(entry, 0) == 0.0;
    default: return GgufIntAt(entry, 0) == 0;
  }
}

}  // namespace

std::string KeyReader::Key(std::string_view key) const {
  std::string name = prefix_ + std::string(key);
  const std::string_view other = OtherKey(spelling_, key);
  if (other.empty() || file_.Find(name) != nullptr) return name;
  std::string theirs = prefix_ + std::string(other);
  return file_.Find(theirs) == nullptr ? name : theirs;
}

bool KeyReader::Has(std::string_view key) const {
  return file_.Find(Key(key)) != nullptr;
}

std::string KeyReader::Used(std::string_view key) {
  std::string whole = Key(key);
  used_.insert(whole);
  return whole;
}

Result<int> KeyReader::InRange(std::string_view key, std::int64_t value, std::int64_t limit,
                               int min) const {
  if (value >= min && value <= limit) return static_cast<int>(value);
  return Corrupt(StrCat(Key(key), " is ", value, "; must be ", min, " to ", limit));
}

Result<int> KeyReader::Int(std::string_view key, std::int64_t limit) {
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t value, file_.GetInt(Used(key)));
  return InRange(key, value, limit);
}

Result<int> KeyReader::IntOr(std::string_view key, std::int64_t limit, int otherwise) {
  return Has(key) ? Int(key, limit) : Result<int>(otherwise);
}

Result<int> KeyReader::IntOrZero(std::string_view key, std::int64_t limit) {
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t value, file_.GetIntOr(Used(key), 0));
  return value == 0 ? Result<int>(0) : InRange(key, value, limit);
}

Result<std::vector<int>> KeyReader::PerLayer(std::string_view key, std::int64_t limit, int layers,
                                             int min) {
  const GgufEntry* entry = file_.Find(Used(key));
  if (entry == nullptr || entry->type != GgufType::kArray) {
    KVCACHE_ASSIGN_OR_RETURN(const int value, Int(key, limit));
    return std::vector<int>(static_cast<std::size_t>(layers), value);
  }
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts array, file_.GetInts(Key(key)));
  if (array.size() != static_cast<std::size_t>(layers)) {
    return Corrupt(StrCat(Key(key), " has ", array.size(), " values for ", layers, " layers"));
  }
  std::vector<int> values;
  for (const std::int64_t value : array) {
    KVCACHE_ASSIGN_OR_RETURN(const int checked, InRange(key, value, limit, min));
    values.push_back(checked);
  }
  return values;
}

Result<double> KeyReader::Finite(std::string_view key, Result<double> value) const {
  if (!value.ok() || std::isfinite(*value)) return value;
  return Corrupt(StrCat(Key(key), " is not a finite number"));
}

Result<double> KeyReader::Float(std::string_view key) {
  return Finite(key, file_.GetFloat(Used(key)));
}

Result<double> KeyReader::FloatOr(std::string_view key, double otherwise) {
  return Finite(key, file_.GetFloatOr(Used(key), otherwise));
}

Result<bool> KeyReader::BoolOr(std::string_view key, bool otherwise) {
  return file_.GetBoolOr(Used(key), otherwise);
}

Result<std::string_view> KeyReader::StringOr(std::string_view key, std::string_view otherwise) {
  return file_.GetStringOr(Used(key), otherwise);
}

void KeyReader::IgnoreAll(std::string_view prefix) {
  const std::string whole = Key(prefix);
  for (const GgufEntry& entry : file_.entries()) {
    if (entry.key.starts_with(whole)) used_.emplace(entry.key);
  }
}

Status KeyReader::Unsupported(std::string_view key) const {
  const GgufEntry* entry = file_.Find(Key(key));
  return kvcache::Unsupported(StrCat(
      Key(key), " is ", entry == nullptr ? "missing" : ValueText(*entry), ": not supported"));
}

Status KeyReader::CheckAllUsed() const {
  for (const GgufEntry& entry : file_.entries()) {
    if (!entry.key.starts_with(prefix_) || used_.find(entry.key) != used_.end()) continue;
    const std::string_view key = entry.key.substr(prefix_.size());
    if (IsOff(entry) || std::ranges::find(kIgnoredKeys, key) != std::end(kIgnoredKeys)) continue;
    return Unsupported(key);
  }
  return Status::Ok();
}

}  // namespace kvcache
