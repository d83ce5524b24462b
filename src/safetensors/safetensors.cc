#include "safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/little_endian.h"
#include "base/strings.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t kSizeBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{100} << 20;  // the format's own bound
constexpr std::size_t kMaxRank = 8;
constexpr int kMaxNesting = 4;

struct ElementType {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array kTypes = {
    ElementType{"F64", 8}, ElementType{"F32", 4},  ElementType{"F16", 2}, ElementType{"BF16", 2},
    ElementType{"I64", 8}, ElementType{"I32", 4},  ElementType{"I16", 2}, ElementType{"I8", 1},
    ElementType{"U8", 1},  ElementType{"BOOL", 1}, ElementType{"U16", 2}, ElementType{"U32", 4},
    ElementType{"U64", 8},
};

// Sets *product to a * b. Returns false if that does not fit an int64.
bool Multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* product) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (a != 0 && b > kMax / a) return false;
  *product = a * b;
  return true;
}

Status ReadShape(const json& value, SafeTensor* tensor, std::uint64_t* elements) {
  if (!value.is_array() || value.size() > kMaxRank) {
    return Corrupt(StrCat("its shape is not an array of at most ", kMaxRank, " sizes"));
  }
  *elements = 1;
  for (const json& size : value) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > kMaxHeaderBytes << 20 ||
        !Multiply(*elements, size.get<std::uint64_t>(), elements)) {
      return Corrupt("its shape has an impossible size");
    }
    tensor->shape.push_back(size.get<std::int64_t>());
  }
  return Status::Ok();
}

Status ReadBytes(const json& offsets, std::uint64_t expected, std::span<const std::byte> data,
                 SafeTensor* tensor) {
  const bool pair = offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
                    offsets[1].is_number_unsigned();
  if (!pair) return Corrupt("its data_offsets are not two numbers");
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data.size()) {
    return Corrupt(StrCat("its bytes [", begin, ", ", end, ") exceed the file's ", data.size()));
  }
  if (end - begin != expected) {
    return Corrupt(StrCat("it has ", end - begin, " bytes; its shape needs ", expected));
  }
  tensor->bytes = data.subspan(begin, end - begin);
  return Status::Ok();
}

Status ReadTensor(const json& value, std::span<const std::byte> data, SafeTensor* tensor) {
  const bool whole = value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
                     value.contains("shape") && value.contains("data_offsets");
  if (!whole) return Corrupt("it lacks dtype, shape or data_offsets");
  tensor->type = value["dtype"].get<std::string>();
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const ElementType& each) {
    return each.name == tensor->type;
  });
  if (type == kTypes.end()) return Unsupported(StrCat("unknown type ", Quoted(tensor->type)));
  std::uint64_t size = 0;
  KVCACHE_RETURN_IF_ERROR(ReadShape(value["shape"], tensor, &size));
  if (!Multiply(size, type->bytes, &size)) return Corrupt("its shape has an impossible size");
  return ReadBytes(value["data_offsets"], size, data, tensor);
}

// Refuses gaps and overlaps, as the format demands: the ranges tile the data.
Status CheckTiles(const std::vector<SafeTensor>& tensors, std::span<const std::byte> data) {
  std::vector<std::span<const std::byte>> ranges;
  ranges.reserve(tensors.size());
  for (const SafeTensor& tensor : tensors) ranges.push_back(tensor.bytes);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.data(), a.size()) < std::pair(b.data(), b.size());
  });
  const std::byte* next = data.data();
  for (const auto& range : ranges) {
    if (range.data() != next) return Corrupt("its tensors overlap or leave gaps");
    next = range.data() + range.size();
  }
  return next == data.data() + data.size() ? Status::Ok()
                                           : Corrupt("bytes follow after its last tensor");
}

// Parses the header. Sets *repeated to whether a name occurs twice, which JSON libraries hide.
Result<json> ParseJson(std::string_view text, bool* repeated) {
  std::vector<std::string> names;
  bool too_deep = false;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) names.push_back(parsed);
    too_deep = too_deep || depth > kMaxNesting;
    return !too_deep;
  };
  try {
    json object = json::parse(text, watch);
    std::sort(names.begin(), names.end());
    *repeated = std::adjacent_find(names.begin(), names.end()) != names.end();
    if (too_deep || !object.is_object()) return Corrupt("its header is not an object of tensors");
    return object;
  } catch (const json::exception&) {
    return Corrupt("its header is not JSON");
  }
}

}  // namespace

std::int64_t SafeTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(auto file, Parse(mapping.bytes(), path));
  file->mapping_ = std::move(mapping);  // a move keeps the address of the bytes
  return file;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                                std::string path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = std::move(path);
  if (bytes.size() < kSizeBytes) {
    return Corrupt(StrCat(file->path_, ": it has ", bytes.size(), " bytes; no safetensors file"));
  }
  const std::uint64_t size = ReadLittleEndian(bytes.first(kSizeBytes));
  const auto rest = bytes.subspan(kSizeBytes);
  if (size > rest.size() || size > kMaxHeaderBytes) {
    return Corrupt(StrCat(file->path_, ": a header of ", size, " bytes in a file of ", bytes.size(),
                          "; it is cut short or no safetensors file"));
  }
  const auto* text = reinterpret_cast<const char*>(rest.data());
  Status status = file->ParseHeader({text, size}, rest.subspan(size));
  if (!status.ok()) return std::move(status).WithContext(file->path_);
  return file;
}

Status SafetensorsFile::ParseHeader(std::string_view header, std::span<const std::byte> data) {
  bool repeated = false;
  KVCACHE_ASSIGN_OR_RETURN(const json object, ParseJson(header, &repeated));
  if (repeated) return Corrupt("a name occurs twice in its header");
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") continue;
    SafeTensor tensor;
    tensor.name = name;
    Status status = ReadTensor(value, data, &tensor);
    if (!status.ok()) return std::move(status).WithContext(StrCat("tensor ", Quoted(name)));
    tensors_.push_back(std::move(tensor));
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const SafeTensor& a, const SafeTensor& b) { return a.name < b.name; });
  return CheckTiles(tensors_, data);
}

const SafeTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const SafeTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace kvcache
