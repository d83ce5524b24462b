#include "gguf/gguf_writer.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;

std::uint64_t AlignUp(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string& out, std::string_view text) {
  Put<std::uint64_t>(out, text.size());
  out += text;
}

template <typename T>
void PutScalar(std::string& out, GgufType type, T value) {
  Put(out, type);
  Put(out, value);
}

void PutArrayHead(std::string& out, GgufType element, std::uint64_t count) {
  Put(out, GgufType::kArray);
  Put(out, element);
  Put(out, count);
}

template <typename T>
void PutNumbers(std::string& out, GgufType element, std::span<const T> values) {
  PutArrayHead(out, element, values.size());
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Returns the first name that occurs twice, or nullptr.
const std::string* FindDuplicate(std::vector<const std::string*>& names) {
  const auto text = [](const std::string* name) -> const std::string& { return *name; };
  std::ranges::sort(names, {}, text);
  const auto found = std::ranges::adjacent_find(names, {}, text);
  return found == names.end() ? nullptr : *found;
}

// Returns the bytes of the tensor, or 0 if its type or dimensions are invalid.
std::uint64_t SizeOf(const GgufHeader::Tensor& tensor) {
  if (tensor.type == nullptr || tensor.dims.empty() || tensor.dims.size() > 4) return 0;
  if (tensor.dims[0] % tensor.type->block_size != 0) return 0;
  constexpr std::int64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 1024;
  std::int64_t elements = 1;
  for (const std::int64_t dim : tensor.dims) {
    if (dim <= 0 || dim > kMaxElements / elements) return 0;
    elements *= dim;
  }
  return static_cast<std::uint64_t>(elements / tensor.type->block_size * tensor.type->block_bytes);
}

}  // namespace

void GgufHeader::SetString(std::string_view key, std::string_view value) {
  PutString(entries_, keys_.emplace_back(key));
  Put(entries_, GgufType::kString);
  PutString(entries_, value);
}

void GgufHeader::SetBool(std::string_view key, bool value) {
  PutString(entries_, keys_.emplace_back(key));
  PutScalar<std::uint8_t>(entries_, GgufType::kBool, value ? 1 : 0);
}

void GgufHeader::SetUint32(std::string_view key, std::uint32_t value) {
  PutString(entries_, keys_.emplace_back(key));
  PutScalar(entries_, GgufType::kUint32, value);
}

void GgufHeader::SetInt32(std::string_view key, std::int32_t value) {
  PutString(entries_, keys_.emplace_back(key));
  PutScalar(entries_, GgufType::kInt32, value);
}

void GgufHeader::SetUint64(std::string_view key, std::uint64_t value) {
  PutString(entries_, keys_.emplace_back(key));
  PutScalar(entries_, GgufType::kUint64, value);
}

void GgufHeader::SetFloat32(std::string_view key, float value) {
  PutString(entries_, keys_.emplace_back(key));
  PutScalar(entries_, GgufType::kFloat32, value);
}

void GgufHeader::SetStrings(std::string_view key, std::span<const std::string> values) {
  PutString(entries_, keys_.emplace_back(key));
  PutArrayHead(entries_, GgufType::kString, values.size());
  for (const std::string& value : values) PutString(entries_, value);
}

void GgufHeader::SetFloats(std::string_view key, std::span<const float> values) {
  PutString(entries_, keys_.emplace_back(key));
  PutNumbers(entries_, GgufType::kFloat32, values);
}

void GgufHeader::SetInts(std::string_view key, std::span<const std::int32_t> values) {
  PutString(entries_, keys_.emplace_back(key));
  PutNumbers(entries_, GgufType::kInt32, values);
}

void GgufHeader::SetBools(std::string_view key, std::span<const bool> values) {
  PutString(entries_, keys_.emplace_back(key));
  PutNumbers(entries_, GgufType::kBool, values);
}

void GgufHeader::SetBytes(std::string_view key, std::span<const std::byte> values) {
  PutString(entries_, keys_.emplace_back(key));
  PutNumbers(entries_, GgufType::kUint8, values);
}

void GgufHeader::SetEntry(const GgufEntry& entry) {
  PutString(entries_, keys_.emplace_back(entry.key));
  if (entry.type == GgufType::kArray) {
    PutArrayHead(entries_, entry.element, entry.count);
  } else {
    Put(entries_, entry.type);
  }
  entries_.append(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
}

std::size_t GgufHeader::AddTensor(std::string_view name, GgmlType type,
                                  std::span<const std::int64_t> dims) {
  Tensor tensor{.name = std::string(name),
                .type = FindGgmlType(type),
                .dims = {dims.begin(), dims.end()},
                .offset = data_bytes_};
  tensor.size_bytes = SizeOf(tensor);
  data_bytes_ = AlignUp(data_bytes_ + tensor.size_bytes);
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

Status GgufHeader::CheckKeys() const {
  std::vector<const std::string*> names;
  for (const std::string& key : keys_) {
    if (key.empty()) return InvalidArgument("a key is empty; must have a name");
    names.push_back(&key);
  }
  const std::string* twice = FindDuplicate(names);
  if (twice == nullptr) return Status::Ok();
  return InvalidArgument(StrCat("key ", Quoted(*twice), " is set twice"));
}

Status GgufHeader::CheckTensors() const {
  std::vector<const std::string*> names;
  for (const Tensor& tensor : tensors_) {
    if (tensor.name.empty()) return InvalidArgument("a tensor's name is empty; must have a name");
    if (tensor.size_bytes == 0) {
      std::string dims;
      for (const std::int64_t dim : tensor.dims) dims += StrCat(dims.empty() ? "" : ", ", dim);
      return InvalidArgument(StrCat("tensor ", Quoted(tensor.name), " has dims {", dims,
                                    "} and type ",
                                    tensor.type == nullptr ? "unknown" : tensor.type->name,
                                    "; must have a known type, 1 to 4 positive dims and whole "
                                    "blocks"));
    }
    names.push_back(&tensor.name);
  }
  const std::string* twice = FindDuplicate(names);
  if (twice == nullptr) return Status::Ok();
  return InvalidArgument(StrCat("tensor ", Quoted(*twice), " is added twice"));
}

Result<std::string> GgufHeader::Serialize() const {
  KVCACHE_RETURN_IF_ERROR(CheckKeys());
  KVCACHE_RETURN_IF_ERROR(CheckTensors());
  std::string out = "GGUF";
  Put(out, kVersion);
  Put<std::uint64_t>(out, tensors_.size());
  Put<std::uint64_t>(out, keys_.size());
  out += entries_;
  for (const Tensor& tensor : tensors_) {
    PutString(out, tensor.name);
    Put(out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::int64_t dim : tensor.dims) Put(out, dim);
    Put(out, tensor.type->type);
    Put(out, tensor.offset);
  }
  out.resize(AlignUp(out.size()));
  return out;
}

GgufWriter::GgufWriter(GgufHeader header, std::uint64_t data_offset, std::unique_ptr<NewFile> file)
    : header_(std::move(header)),
      data_offset_(data_offset),
      file_(std::move(file)),
      written_(header_.tensors().size()) {}

Result<std::unique_ptr<GgufWriter>> GgufWriter::Create(const std::string& path, GgufHeader header) {
  auto head = header.Serialize();
  if (!head.ok()) return std::move(head).TakeStatus().WithContext(path);
  KVCACHE_ASSIGN_OR_RETURN(auto file, NewFile::Create(path, head->size() + header.data_bytes()));
  KVCACHE_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(head->data(), head->size()))));
  return std::unique_ptr<GgufWriter>(
      new GgufWriter(std::move(header), head->size(), std::move(file)));
}

Status GgufWriter::Write(std::size_t tensor, std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  if (tensor >= header_.tensors().size()) {
    return InvalidArgument(StrCat(file_->path(), ": the tensor index is ", tensor,
                                  "; the file has ", header_.tensors().size(), " tensors"));
  }
  const GgufHeader::Tensor& info = header_.tensors()[tensor];
  if (offset > info.size_bytes || bytes.size() > info.size_bytes - offset) {
    return InvalidArgument(StrCat(file_->path(), ": tensor ", Quoted(info.name), ": ", bytes.size(),
                                  " bytes at offset ", offset, " do not fit; it has ",
                                  info.size_bytes, " bytes"));
  }
  written_[tensor] += bytes.size();
  return file_->WriteAt(data_offset_ + info.offset + offset, bytes);
}

Status GgufWriter::Finish() {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    const GgufHeader::Tensor& info = header_.tensors()[i];
    if (written_[i] == info.size_bytes) continue;
    return InvalidArgument(StrCat(file_->path(), ": tensor ", Quoted(info.name), ": ",
                                  written_[i].load(), " bytes were written; must be all ",
                                  info.size_bytes));
  }
  return file_->Commit();
}

}  // namespace kvcache
