#include "engine/packed/packed_format.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/errors.h"
#include "base/little_endian.h"
#include "base/strings.h"
#include "store/content_hash.h"

namespace kvcache::packed {
namespace {

constexpr std::uint64_t kMagic = 0x31'4C'4E'41'50'56'4B'89;  // "\x89KVPANL1"
constexpr std::size_t kNumber = 8;
constexpr std::size_t kHeaderNumbers =
    14;  // the last is the size of the path, which a hash follows
constexpr std::size_t kEntryNumbers = 7;

std::uint64_t RoundedUp(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

std::uint64_t TableSize(std::uint64_t entries, std::uint64_t pieces) {
  return (entries * kEntryNumbers + pieces) * kNumber;
}

void AddNumbers(std::initializer_list<std::uint64_t> numbers, std::vector<std::byte>& bytes) {
  for (const std::uint64_t number : numbers) AppendLittleEndian(number, kNumber, bytes);
}

// Takes numbers off the beginning of bytes.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t Next() {
    const std::uint64_t number = ReadLittleEndian(bytes_.first(kNumber));
    bytes_ = bytes_.subspan(kNumber);
    return number;
  }
  std::int64_t NextSigned() { return static_cast<std::int64_t>(Next()); }

 private:
  std::span<const std::byte> bytes_;
};

bool IsSame(const FileIdentity& a, const FileIdentity& b) {
  return a.inode == b.inode && a.bytes == b.bytes && a.modified_ns == b.modified_ns &&
         a.changed_ns == b.changed_ns;
}

std::uint64_t PiecesUpTo(std::uint64_t end) {
  return RoundedUp(end, kPieceBytes) / kPieceBytes - 1;
}

Status CheckEntries(const PackedTable& table) {
  for (const WeightEntry& entry : table.entries) {
    const bool is_inside = entry.at >= kPieceBytes && entry.at % kPanelAlignment == 0 &&
                           entry.at <= table.end && entry.bytes <= table.end - entry.at;
    if (!is_inside) {
      return Corrupt(StrCat(entry.bytes, " bytes of panels at ", entry.at,
                            " are not between the header and the table at ", table.end));
    }
  }
  return Status::Ok();
}

constexpr std::size_t kMaxPath = kHeaderBytes - (kHeaderNumbers + 1) * kNumber;

struct Header {
  PackedTable table;  // without what the table has
  std::uint64_t size = 0;
  std::uint64_t entries = 0;
  std::uint64_t pieces = 0;
  std::uint64_t table_sum = 0;
};

Result<Header> ReadHeader(const PackedSource& file) {
  constexpr std::size_t kUsed = kHeaderNumbers * kNumber;
  if (file.bytes < kPieceBytes) {
    return Corrupt(StrCat("it has ", file.bytes, " bytes, less than its header takes"));
  }
  std::vector<std::byte> bytes(kHeaderBytes);
  KVCACHE_RETURN_IF_ERROR(file.read(0, bytes));
  Numbers numbers(bytes);
  if (numbers.Next() != kMagic) return Corrupt("it does not begin as files of packed weights do");
  if (const std::uint64_t version = numbers.Next(); version != kVersion) {
    return Unsupported(
        StrCat("it has version ", version, " of the format; this program reads ", kVersion));
  }
  Header header;
  PackedTable& table = header.table;
  table.layout = numbers.Next();
  header.size = numbers.Next();
  table.end = numbers.Next();
  header.entries = numbers.Next();
  header.pieces = numbers.Next();
  table.model.inode = numbers.Next();
  table.model.bytes = numbers.Next();
  table.model.modified_ns = numbers.NextSigned();
  table.model.changed_ns = numbers.NextSigned();
  table.digest = numbers.Next();
  header.table_sum = numbers.Next();
  const std::uint64_t path = numbers.Next();
  const std::span<const std::byte> all(bytes);
  if (path > kMaxPath || ReadLittleEndian(all.subspan(kUsed + path, kNumber)) !=
                             HashOfPiece(all.first(kUsed + path))) {
    return Corrupt("its header is damaged");
  }
  for (const std::byte character : all.subspan(kUsed, path)) {
    table.path.push_back(static_cast<char>(character));
  }
  return header;
}

}  // namespace

std::uint64_t HashOfPiece(std::span<const std::byte> piece) {
  const std::array<std::byte, 16> hash = store::FastHash(piece);
  return ReadLittleEndian(std::span(hash).first(kNumber));
}

Places PlacesOf(std::span<const std::uint64_t> sizes) {
  Places places;
  places.end = kPieceBytes;
  for (const std::uint64_t size : sizes) {
    places.at.push_back(places.end);
    places.end = RoundedUp(places.end + size, kPanelAlignment);
  }
  places.pieces = PiecesUpTo(places.end);
  return places;
}

std::uint64_t FileBytes(const Places& places) {
  return places.end + TableSize(places.at.size(), places.pieces);
}

TableBytes Write(const PackedTable& table) {
  TableBytes bytes;
  for (const WeightEntry& entry : table.entries) {
    const WeightKey& key = entry.key;
    AddNumbers({key.part, key.offset, key.inputs, key.outputs, key.matrices, entry.at, entry.bytes},
               bytes.table);
  }
  for (const std::uint64_t sum : table.sums) AddNumbers({sum}, bytes.table);
  const FileIdentity& model = table.model;
  const std::string path = table.path.size() <= kMaxPath ? table.path : "";
  AddNumbers(
      {kMagic, kVersion, table.layout, table.end + bytes.table.size(), table.end,
       table.entries.size(), table.sums.size(), model.inode, model.bytes,
       static_cast<std::uint64_t>(model.modified_ns), static_cast<std::uint64_t>(model.changed_ns),
       table.digest, HashOfPiece(bytes.table), path.size()},
      bytes.header);
  const auto path_bytes = std::as_bytes(std::span(path));
  bytes.header.insert(bytes.header.end(), path_bytes.begin(), path_bytes.end());
  AddNumbers({HashOfPiece(bytes.header)}, bytes.header);
  return bytes;
}

Result<PackedTable> Read(const PackedSource& file, const FileIdentity& model,
                         std::uint64_t layout) {
  KVCACHE_ASSIGN_OR_RETURN(Header header, ReadHeader(file));
  PackedTable& table = header.table;
  if (table.layout != layout) {
    return Unsupported(
        StrCat("its panels have layout ", table.layout, "; this program uses ", layout));
  }
  if (!IsSame(table.model, model)) return NotFound("it was made of another model's file");
  if (header.size != file.bytes) {
    return Corrupt(StrCat("it has ", file.bytes, " bytes of ", header.size));
  }
  // The header is whole, so that its numbers are what a writer wrote.
  const bool fits = table.end >= kPieceBytes && table.end <= header.size &&
                    header.pieces == PiecesUpTo(table.end) && header.entries <= header.size &&
                    TableSize(header.entries, header.pieces) == header.size - table.end;
  if (!fits) return Corrupt("its table has another size than its header says");
  std::vector<std::byte> rest(header.size - table.end);
  KVCACHE_RETURN_IF_ERROR(file.read(table.end, rest));
  if (HashOfPiece(rest) != header.table_sum) return Corrupt("its table is damaged");
  Numbers numbers(rest);
  for (std::uint64_t i = 0; i < header.entries; ++i) {
    WeightEntry entry;
    entry.key.part = numbers.Next();
    entry.key.offset = numbers.Next();
    entry.key.inputs = numbers.Next();
    entry.key.outputs = numbers.Next();
    entry.key.matrices = numbers.Next();
    entry.at = numbers.Next();
    entry.bytes = numbers.Next();
    table.entries.push_back(entry);
  }
  for (std::uint64_t i = 0; i < header.pieces; ++i) table.sums.push_back(numbers.Next());
  KVCACHE_RETURN_IF_ERROR(CheckEntries(table));
  return std::move(table);
}

Result<std::string> ReadModelPath(const PackedSource& file) {
  KVCACHE_ASSIGN_OR_RETURN(Header header, ReadHeader(file));
  return std::move(header.table.path);
}

}  // namespace kvcache::packed
