// Reads and checks a GGUF file. Only this file reads unchecked bytes.
//
// Cost: one pass over the header, and one sort each of the keys, names and tensor offsets, so that
// no input is quadratic. Memory is a constant per key and tensor that the file really holds: counts
// are compared with the bytes left before memory is reserved.

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::size_t kMaxKeyBytes = 65535;
// Bounds the memory of keys and tensors. No model comes near it.
constexpr std::uint64_t kMaxItems = 1 << 20;
constexpr std::uint64_t kMaxAlignment = 1 << 30;
// The minimum bytes of a key with its value, and of a tensor's description.
constexpr std::uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

// A position in the bytes that only moves forward and never past the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t offset() const { return offset_; }
  std::size_t left() const { return bytes_.size() - offset_; }

  Result<std::span<const std::byte>> Take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      return Corrupt(StrCat("offset ", offset_, ": ", what, " needs ", count, " bytes; ", left(),
                            " are left"));
    }
    const auto taken = bytes_.subspan(offset_, count);
    offset_ += count;
    return taken;
  }

  template <typename T>
  Result<T> Read(std::string_view what) {
    KVCACHE_ASSIGN_OR_RETURN(const auto taken, Take(sizeof(T), what));
    return LoadUnaligned<T>(taken.data());
  }

  Result<std::string_view> ReadString(std::string_view what) {
    KVCACHE_ASSIGN_OR_RETURN(const auto length, Read<std::uint64_t>(what));
    KVCACHE_ASSIGN_OR_RETURN(const auto taken, Take(length, what));
    return std::string_view(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
};

Status UnknownValueType(std::size_t offset, std::uint32_t type) {
  return Corrupt(StrCat("offset ", offset, ": the value type is ", type, "; must be 0 to ",
                        static_cast<std::uint32_t>(GgufType::kFloat64)));
}

// Returns the indices [0, count) in ascending order of key(i).
template <typename Key>
std::vector<std::uint32_t> Order(std::size_t count, Key key) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, key);
  return order;
}

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file)
      : cursor_(bytes), bytes_(bytes), file_(file) {
    file_.parts_.front().bytes = bytes;
  }

  Status Parse() {
    KVCACHE_RETURN_IF_ERROR(ReadHeader());
    KVCACHE_RETURN_IF_ERROR(ReadEntries());
    KVCACHE_RETURN_IF_ERROR(IndexEntries());
    KVCACHE_RETURN_IF_ERROR(ReadAlignment());
    KVCACHE_RETURN_IF_ERROR(ReadTensors());
    KVCACHE_RETURN_IF_ERROR(IndexTensors());
    KVCACHE_RETURN_IF_ERROR(PlaceTensors());
    return CheckOverlap();
  }

  static std::unique_ptr<GgufFile> NewFile(std::string path) {
    std::unique_ptr<GgufFile> file(new GgufFile);
    file->parts_.emplace_back().path = path;
    file->path_ = std::move(path);
    return file;
  }
  static void KeepMapping(GgufFile& file, MappedFile mapping) {
    file.parts_.front().mapping = std::move(mapping);
  }

 private:
  Status ReadHeader();
  Status CheckVersion(std::uint32_t version) const;
  Status CheckCount(std::string_view what, std::uint64_t count, std::uint64_t min_bytes) const;
  Status ReadEntries();
  Result<GgufEntry> ReadEntry();
  Status ReadValue(GgufEntry& entry);
  Status ReadArray(GgufEntry& entry);
  Status ReadElements(GgufEntry& entry);
  Status IndexEntries();
  Status ReadAlignment();
  Status ReadTensors();
  Result<GgufTensor> ReadTensor();
  Status ReadDims(GgufTensor& tensor);
  Status ReadType(GgufTensor& tensor);
  Status IndexTensors();
  Status PlaceTensors();
  Status PlaceTensor(GgufTensor& tensor) const;
  Status CheckOverlap() const;
  std::size_t OffsetOf(const GgufEntry& entry) const {
    return static_cast<std::size_t>(entry.bytes.data() - bytes_.data());
  }

  Cursor cursor_;
  const std::span<const std::byte> bytes_;
  GgufFile& file_;
  std::uint64_t data_offset_ = 0;
  std::uint64_t entry_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

Status GgufParser::ReadHeader() {
  constexpr std::string_view kMagic = "GGUF";
  const auto magic = cursor_.Take(kMagic.size(), "the magic number");
  if (!magic.ok()) {
    return Corrupt(
        StrCat("not a GGUF file: it has ", bytes_.size(), " bytes; must begin with 'GGUF'"));
  }
  const std::string_view found(reinterpret_cast<const char*>(magic->data()), magic->size());
  if (found != kMagic) {
    return Corrupt(
        StrCat("not a GGUF file: it begins with ", Quoted(found), "; must begin with 'GGUF'"));
  }
  KVCACHE_ASSIGN_OR_RETURN(file_.version_, cursor_.Read<std::uint32_t>("the version"));
  KVCACHE_RETURN_IF_ERROR(CheckVersion(file_.version_));
  KVCACHE_ASSIGN_OR_RETURN(tensor_count_, cursor_.Read<std::uint64_t>("the number of tensors"));
  KVCACHE_ASSIGN_OR_RETURN(entry_count_, cursor_.Read<std::uint64_t>("the number of keys"));
  KVCACHE_RETURN_IF_ERROR(CheckCount("keys", entry_count_, kMinEntryBytes));
  return CheckCount("tensors", tensor_count_, kMinTensorBytes);
}

Status GgufParser::CheckVersion(std::uint32_t version) const {
  if (version == 2 || version == 3) return Status::Ok();
  // In a big-endian file the bytes of the version are reversed: the high byte holds the number.
  if (version != 0 && (version & 0xffff) == 0) {
    return Unsupported("the GGUF file is big-endian; only little-endian is supported");
  }
  return Unsupported(StrCat("the GGUF version is ", version, "; versions 2 and 3 are supported"));
}

Status GgufParser::CheckCount(std::string_view what, std::uint64_t count,
                              std::uint64_t min_bytes) const {
  if (count > cursor_.left() / min_bytes) {
    return Corrupt(StrCat("offset ", cursor_.offset(), ": ", count, " ", what,
                          " do not fit; each needs at least ", min_bytes, " bytes, and ",
                          cursor_.left(), " are left"));
  }
  if (count <= kMaxItems) return Status::Ok();
  return Unsupported(
      StrCat("the file has ", count, " ", what, "; at most ", kMaxItems, " are supported"));
}

Status GgufParser::ReadEntries() {
  file_.entries_.reserve(entry_count_);
  for (std::uint64_t i = 0; i < entry_count_; ++i) {
    auto entry = ReadEntry();
    if (!entry.ok()) {
      return std::move(entry).TakeStatus().WithContext(StrCat("key ", i + 1, " of ", entry_count_));
    }
    file_.entries_.push_back(*entry);
  }
  return Status::Ok();
}

Result<GgufEntry> GgufParser::ReadEntry() {
  const std::size_t offset = cursor_.offset();
  GgufEntry entry;
  KVCACHE_ASSIGN_OR_RETURN(entry.key, cursor_.ReadString("its name"));
  if (entry.key.empty() || entry.key.size() > kMaxKeyBytes) {
    return Corrupt(StrCat("offset ", offset, ": its name has ", entry.key.size(),
                          " bytes; must have 1 to ", kMaxKeyBytes));
  }
  Status status = ReadValue(entry);
  if (!status.ok()) return std::move(status).WithContext(Quoted(entry.key));
  return entry;
}

Status GgufParser::ReadValue(GgufEntry& entry) {
  const std::size_t offset = cursor_.offset();
  KVCACHE_ASSIGN_OR_RETURN(const auto type, cursor_.Read<std::uint32_t>("its type"));
  entry.type = entry.element = static_cast<GgufType>(type);
  if (entry.type == GgufType::kArray) return ReadArray(entry);
  if (type > static_cast<std::uint32_t>(GgufType::kFloat64)) {
    return UnknownValueType(offset, type);
  }
  return ReadElements(entry);
}

Status GgufParser::ReadArray(GgufEntry& entry) {
  const std::size_t offset = cursor_.offset();
  KVCACHE_ASSIGN_OR_RETURN(const auto type, cursor_.Read<std::uint32_t>("its element type"));
  entry.element = static_cast<GgufType>(type);
  if (entry.element == GgufType::kArray) {
    return Unsupported(StrCat("offset ", offset, ": arrays of arrays are not supported"));
  }
  if (type > static_cast<std::uint32_t>(GgufType::kFloat64)) {
    return UnknownValueType(offset, type);
  }
  KVCACHE_ASSIGN_OR_RETURN(entry.count, cursor_.Read<std::uint64_t>("its length"));
  return ReadElements(entry);
}

// Reads entry.count elements and checks them.
Status GgufParser::ReadElements(GgufEntry& entry) {
  const std::size_t begin = cursor_.offset();
  const bool strings = entry.element == GgufType::kString;
  const std::size_t min_bytes = strings ? sizeof(std::uint64_t) : GgufTypeBytes(entry.element);
  if (entry.count > cursor_.left() / min_bytes) {
    return Corrupt(StrCat("offset ", begin, ": ", entry.count, " values of type ",
                          GgufTypeName(entry.element), " do not fit; each needs at least ",
                          min_bytes, " bytes, and ", cursor_.left(), " are left"));
  }
  if (strings) {
    for (std::uint64_t i = 0; i < entry.count; ++i) {
      KVCACHE_RETURN_IF_ERROR(cursor_.ReadString("a string").status());
    }
  } else {
    KVCACHE_RETURN_IF_ERROR(cursor_.Take(entry.count * min_bytes, "its value").status());
  }
  entry.bytes = bytes_.subspan(begin, cursor_.offset() - begin);
  if (entry.element != GgufType::kBool) return Status::Ok();
  const auto is_bool = [](std::byte byte) { return byte <= std::byte{1}; };
  const auto bad = std::ranges::find_if_not(entry.bytes, is_bool);
  if (bad == entry.bytes.end()) return Status::Ok();
  return Corrupt(StrCat("offset ", begin + static_cast<std::size_t>(bad - entry.bytes.begin()),
                        ": the bool is ", static_cast<int>(*bad), "; must be 0 or 1"));
}

Status GgufParser::IndexEntries() {
  const auto& entries = file_.entries_;
  const auto key_of = [&](std::uint32_t i) { return entries[i].key; };
  file_.entries_by_key_ = Order(entries.size(), key_of);
  const auto twice = std::ranges::adjacent_find(file_.entries_by_key_, {}, key_of);
  if (twice == file_.entries_by_key_.end()) return Status::Ok();
  return Corrupt(StrCat("key ", Quoted(key_of(*twice)), " occurs twice, with values at offsets ",
                        OffsetOf(entries[std::min(twice[0], twice[1])]), " and ",
                        OffsetOf(entries[std::max(twice[0], twice[1])])));
}

Status GgufParser::ReadAlignment() {
  const GgufEntry* entry = file_.Find("general.alignment");
  if (entry != nullptr && !IsGgufInteger(entry->type)) {
    return Corrupt(
        StrCat("general.alignment has type ", GgufTypeName(entry->type), "; must be an integer"));
  }
  file_.alignment_ = kDefaultAlignment;
  if (entry != nullptr) file_.alignment_ = static_cast<std::uint64_t>(GgufIntAt(*entry, 0));
  if (file_.alignment_ >= 8 && file_.alignment_ <= kMaxAlignment &&
      std::has_single_bit(file_.alignment_)) {
    return Status::Ok();
  }
  return Corrupt(StrCat("general.alignment is ", file_.alignment_,
                        "; must be a power of two from 8 to ", kMaxAlignment));
}

Status GgufParser::ReadTensors() {
  KVCACHE_RETURN_IF_ERROR(CheckCount("tensors", tensor_count_, kMinTensorBytes));
  file_.tensors_.reserve(tensor_count_);
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    auto tensor = ReadTensor();
    if (!tensor.ok()) {
      return std::move(tensor).TakeStatus().WithContext(
          StrCat("tensor ", i + 1, " of ", tensor_count_));
    }
    file_.tensors_.push_back(*tensor);
  }
  return Status::Ok();
}

Result<GgufTensor> GgufParser::ReadTensor() {
  const std::size_t offset = cursor_.offset();
  GgufTensor tensor;
  KVCACHE_ASSIGN_OR_RETURN(tensor.name, cursor_.ReadString("its name"));
  if (tensor.name.empty() || tensor.name.size() > kMaxKeyBytes) {
    return Corrupt(StrCat("offset ", offset, ": its name has ", tensor.name.size(),
                          " bytes; must have 1 to ", kMaxKeyBytes));
  }
  Status status = ReadDims(tensor);
  if (status.ok()) status = ReadType(tensor);
  if (!status.ok()) return std::move(status).WithContext(Quoted(tensor.name));
  // Relative to the start of the data, which is not known yet; PlaceTensor makes it absolute.
  KVCACHE_ASSIGN_OR_RETURN(tensor.offset, cursor_.Read<std::uint64_t>("its offset"));
  return tensor;
}

Status GgufParser::ReadDims(GgufTensor& tensor) {
  const std::size_t offset = cursor_.offset();
  KVCACHE_ASSIGN_OR_RETURN(const auto rank, cursor_.Read<std::uint32_t>("its rank"));
  if (rank > tensor.dims.size()) {
    return Corrupt(StrCat("offset ", offset, ": it has ", rank, " dimensions; at most ",
                          tensor.dims.size(), " are allowed"));
  }
  tensor.rank = static_cast<int>(rank);
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const auto dim, cursor_.Read<std::uint64_t>("its dimensions"));
    const auto max_dim =
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / elements);
    if (dim == 0 || dim > max_dim) {
      return Corrupt(StrCat("offset ", cursor_.offset() - sizeof(dim), ": dimension ", i, " is ",
                            dim, "; must be 1 to ", max_dim, ", for fewer than 2^63 values"));
    }
    tensor.dims[i] = static_cast<std::int64_t>(dim);
    elements *= tensor.dims[i];
  }
  return Status::Ok();
}

Status GgufParser::ReadType(GgufTensor& tensor) {
  const std::size_t offset = cursor_.offset();
  KVCACHE_ASSIGN_OR_RETURN(const auto number, cursor_.Read<std::uint32_t>("its type"));
  tensor.type = FindGgmlType(static_cast<GgmlType>(number));
  if (tensor.type == nullptr) {
    return Unsupported(StrCat("offset ", offset, ": its type is ", number, ", which is not known"));
  }
  if (tensor.dims[0] % tensor.type->block_size == 0) return Status::Ok();
  return Corrupt(StrCat("offset ", offset, ": its rows have ", tensor.dims[0],
                        " values; must be a multiple of ", tensor.type->block_size, " for type ",
                        tensor.type->name));
}

Status GgufParser::IndexTensors() {
  const auto name_of = [&](std::uint32_t i) { return file_.tensors_[i].name; };
  file_.tensors_by_name_ = Order(file_.tensors_.size(), name_of);
  const auto twice = std::ranges::adjacent_find(file_.tensors_by_name_, {}, name_of);
  if (twice == file_.tensors_by_name_.end()) return Status::Ok();
  return Corrupt(StrCat("tensor ", Quoted(name_of(*twice)), " occurs twice"));
}

Status GgufParser::PlaceTensors() {
  const std::uint64_t mask = file_.alignment_ - 1;
  data_offset_ = (cursor_.offset() + mask) & ~mask;
  file_.parts_.front().data_offset = data_offset_;
  for (GgufTensor& tensor : file_.tensors_) {
    Status status = PlaceTensor(tensor);
    if (!status.ok()) {
      return std::move(status).WithContext(StrCat("tensor ", Quoted(tensor.name)));
    }
  }
  return Status::Ok();
}

Status GgufParser::PlaceTensor(GgufTensor& tensor) const {
  if (tensor.offset % file_.alignment_ != 0) {
    return Corrupt(StrCat("its offset is ", tensor.offset,
                          "; must be a multiple of the alignment, ", file_.alignment_));
  }
  const std::uint64_t size = bytes_.size();
  const std::uint64_t data = size - std::min(size, data_offset_);
  const std::uint64_t left = data - std::min(data, tensor.offset);
  const auto blocks = static_cast<std::uint64_t>(tensor.elements() / tensor.type->block_size);
  const auto block_bytes = static_cast<std::uint64_t>(tensor.type->block_bytes);
  if (blocks > left / block_bytes) {
    return Corrupt(StrCat("its ", blocks, " blocks of ", block_bytes, " bytes at data offset ",
                          tensor.offset, " do not fit; the data begins at offset ", data_offset_,
                          " of a file of ", size, " bytes, which may be truncated"));
  }
  tensor.offset += data_offset_;
  tensor.bytes = bytes_.subspan(tensor.offset, blocks * block_bytes);
  return Status::Ok();
}

Status GgufParser::CheckOverlap() const {
  const auto& tensors = file_.tensors_;
  const auto order = Order(tensors.size(), [&](std::uint32_t i) { return tensors[i].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& after = tensors[order[i]];
    if (before.offset + before.bytes.size() <= after.offset) continue;
    return Corrupt(StrCat("tensors ", Quoted(before.name), " and ", Quoted(after.name),
                          " overlap at offset ", after.offset));
  }
  return Status::Ok();
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                  std::string path) {
  auto file = GgufParser::NewFile(std::move(path));
  Status status = GgufParser(bytes, *file).Parse();
  if (!status.ok()) return std::move(status).WithContext(file->path());
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::OpenPart(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(auto file, Parse(mapping.bytes(), path));
  GgufParser::KeepMapping(*file, std::move(mapping));
  return file;
}

}  // namespace kvcache
