#include "gguf/gguf.h"

#include <algorithm>
#include <limits>

#include "base/fnv.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kString = "a string";
constexpr std::string_view kUint = "an unsigned integer";
constexpr std::string_view kInt = "an integer";
constexpr std::string_view kFloat = "a float";
constexpr std::string_view kBool = "a bool";

bool IsFloat(GgufType type) {
  return type == GgufType::kFloat32 || type == GgufType::kFloat64;
}

// Describes an entry for an error: "uint32 7", "string", "array of 3 float32".
std::string Describe(const GgufEntry& entry) {
  if (entry.type == GgufType::kArray) {
    return StrCat("array of ", entry.count, " ", GgufTypeName(entry.element));
  }
  if (!IsGgufInteger(entry.type)) return std::string(GgufTypeName(entry.type));
  const std::int64_t value = GgufIntAt(entry, 0);
  if (entry.type != GgufType::kUint64) return StrCat(GgufTypeName(entry.type), " ", value);
  return StrCat(GgufTypeName(entry.type), " ", static_cast<std::uint64_t>(value));
}

// Returns whether element i, an integer, fits an int64_t.
bool FitsInt64(const GgufEntry& entry, std::uint64_t i) {
  return entry.element != GgufType::kUint64 || GgufIntAt(entry, i) >= 0;
}

bool AllFitInt64(const GgufEntry& entry) {
  if (entry.element != GgufType::kUint64) return true;
  for (std::uint64_t i = 0; i < entry.count; ++i) {
    if (!FitsInt64(entry, i)) return false;
  }
  return true;
}

// Returns the item with this name; nullptr if there is none. `order` sorts `items` by name.
template <typename Item>
const Item* FindByName(std::span<const Item> items, std::span<const std::uint32_t> order,
                       std::string_view Item::*name, std::string_view wanted) {
  const auto name_of = [&](std::uint32_t i) { return items[i].*name; };
  const auto found = std::ranges::lower_bound(order, wanted, {}, name_of);
  if (found == order.end() || name_of(*found) != wanted) return nullptr;
  return &items[*found];
}

}  // namespace

Result<TensorView> GgufTensor::View() const {
  if (!type->dtype.has_value()) {
    return Status(StatusCode::kUnsupported, StrCat("tensor ", Quoted(name), " has type ",
                                                   type->name, ", which is not supported"));
  }
  return TensorView::Dense(const_cast<std::byte*>(bytes.data()), *type->dtype, dims[0], dims[1],
                           dims[2], dims[3]);
}

std::uint64_t GgufFile::size_bytes() const {
  std::uint64_t size = 0;
  for (const GgufPart& part : parts_) size += part.bytes.size();
  return size;
}

FileIdentity GgufFile::identity() const {
  FileIdentity all = parts_.front().mapping.identity();
  for (const GgufPart& part : std::span(parts_).subspan(1)) {
    const FileIdentity& one = part.mapping.identity();
    Fnv1a mixed;
    mixed.AddValue(all);
    mixed.AddValue(one);
    all.inode = mixed.sum();
    all.bytes += one.bytes;
    all.modified_ns = std::max(all.modified_ns, one.modified_ns);
    all.changed_ns = std::max(all.changed_ns, one.changed_ns);
  }
  return all;
}

const GgufEntry* GgufFile::Find(std::string_view key) const {
  return FindByName<GgufEntry>(entries_, entries_by_key_, &GgufEntry::key, key);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  return FindByName<GgufTensor>(tensors_, tensors_by_name_, &GgufTensor::name, name);
}

Result<TensorView> GgufFile::Tensor(std::string_view name) const {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) {
    return Status(
        StatusCode::kNotFound,
        StrCat("tensor ", Quoted(name), " is missing; the file has ", tensors_.size(), " tensors"));
  }
  return tensor->View();
}

Result<const GgufEntry*> GgufFile::Require(std::string_view key, std::string_view expected) const {
  const GgufEntry* entry = Find(key);
  if (entry != nullptr) return entry;
  return Status(StatusCode::kNotFound,
                StrCat("metadata ", Quoted(key), " is missing, expected ", expected));
}

Status GgufFile::WrongType(const GgufEntry& entry, std::string_view expected) const {
  return {StatusCode::kInvalidArgument, StrCat("metadata ", Quoted(entry.key), ": expected ",
                                               expected, ", found ", Describe(entry))};
}

Result<std::string_view> GgufFile::GetString(std::string_view key) const {
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kString));
  if (entry->type != GgufType::kString) return WrongType(*entry, kString);
  return *GgufStrings(*entry).begin();
}

Result<std::uint64_t> GgufFile::GetUint(std::string_view key) const {
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kUint));
  if (!IsGgufInteger(entry->type)) return WrongType(*entry, kUint);
  const std::int64_t value = GgufIntAt(*entry, 0);
  if (value < 0 && entry->type != GgufType::kUint64) return WrongType(*entry, kUint);
  return static_cast<std::uint64_t>(value);
}

Result<std::int64_t> GgufFile::GetInt(std::string_view key) const {
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kInt));
  if (!IsGgufInteger(entry->type)) return WrongType(*entry, kInt);
  if (!FitsInt64(*entry, 0)) return WrongType(*entry, "an integer below 2^63");
  return GgufIntAt(*entry, 0);
}

Result<double> GgufFile::GetFloat(std::string_view key) const {
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kFloat));
  if (!IsFloat(entry->type)) return WrongType(*entry, kFloat);
  return GgufFloatAt(*entry, 0);
}

Result<bool> GgufFile::GetBool(std::string_view key) const {
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kBool));
  if (entry->type != GgufType::kBool) return WrongType(*entry, kBool);
  return GgufIntAt(*entry, 0) != 0;
}

Result<GgufStrings> GgufFile::GetStrings(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of strings";
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kExpected));
  const bool fits = entry->type == GgufType::kArray && entry->element == GgufType::kString;
  return fits ? Result<GgufStrings>(GgufStrings(*entry)) : WrongType(*entry, kExpected);
}

Result<GgufInts> GgufFile::GetInts(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of integers below 2^63";
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kExpected));
  const bool fits =
      entry->type == GgufType::kArray && IsGgufInteger(entry->element) && AllFitInt64(*entry);
  return fits ? Result<GgufInts>(GgufInts(*entry)) : WrongType(*entry, kExpected);
}

Result<GgufFloats> GgufFile::GetFloats(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of floats";
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kExpected));
  const bool fits = entry->type == GgufType::kArray && IsFloat(entry->element);
  return fits ? Result<GgufFloats>(GgufFloats(*entry)) : WrongType(*entry, kExpected);
}

Result<GgufBools> GgufFile::GetBools(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of bools";
  KVCACHE_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(key, kExpected));
  const bool fits = entry->type == GgufType::kArray && entry->element == GgufType::kBool;
  return fits ? Result<GgufBools>(GgufBools(*entry)) : WrongType(*entry, kExpected);
}

Result<std::string_view> GgufFile::GetStringOr(std::string_view key,
                                               std::string_view otherwise) const {
  return Find(key) == nullptr ? otherwise : GetString(key);
}

Result<std::uint64_t> GgufFile::GetUintOr(std::string_view key, std::uint64_t otherwise) const {
  return Find(key) == nullptr ? otherwise : GetUint(key);
}

Result<std::int64_t> GgufFile::GetIntOr(std::string_view key, std::int64_t otherwise) const {
  return Find(key) == nullptr ? otherwise : GetInt(key);
}

Result<double> GgufFile::GetFloatOr(std::string_view key, double otherwise) const {
  return Find(key) == nullptr ? otherwise : GetFloat(key);
}

Result<bool> GgufFile::GetBoolOr(std::string_view key, bool otherwise) const {
  return Find(key) == nullptr ? otherwise : GetBool(key);
}

}  // namespace kvcache
