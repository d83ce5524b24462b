// The format of files of packed weights (docs/design/packed-weights.md):
//
//   | header, 8 KiB at most … up to 2 MiB | panels | panels | … | table |
//
// All numbers have 64 bits, the least significant byte first.
//
// Thread safety: values and free functions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "platform/file_identity.h"

namespace kvcache::packed {

inline constexpr std::uint64_t kVersion = 2;
// Panels begin at pages, behind the first piece.
inline constexpr std::uint64_t kPanelAlignment = 4096;
// What is hashed, and written, at once: a huge page. Files that are written so are in huge pages of the page cache.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kHeaderBytes = 8192;

// A weight, by its place and shape in the model's file, which decide its type.
struct WeightKey {
  std::uint64_t part = 0;    // in GgufFile::parts
  std::uint64_t offset = 0;  // of its first row in the part
  std::uint64_t inputs = 0;
  std::uint64_t outputs = 0;
  std::uint64_t matrices = 0;
  auto operator<=>(const WeightKey&) const = default;
};

struct WeightEntry {
  WeightKey key;
  std::uint64_t at = 0;  // of its panels in the file
  std::uint64_t bytes = 0;
};

// What files are made of beside panels.
struct PackedTable {
  FileIdentity model;        // without its device, whose number may change when the machine starts
  std::uint64_t digest = 0;  // ModelDigest, which would read all over the model's file
  std::uint64_t layout = 0;  // PanelUser::panel_layout
  std::uint64_t end = 0;     // of the panels: where the table begins
  std::string path{};        // of the model's file; empty: it does not fit into the header
  std::vector<WeightEntry> entries{};
  // HashOfPiece of each piece from the second on; the last piece ends at `end`.
  std::vector<std::uint64_t> sums{};
};

std::uint64_t HashOfPiece(std::span<const std::byte> piece);

// Returns the places of panels of these sizes, and their end, in a file.
struct Places {
  std::vector<std::uint64_t> at;
  std::uint64_t end = 0;
  std::uint64_t pieces = 0;
};
Places PlacesOf(std::span<const std::uint64_t> sizes);
// Returns the size of a file with so many entries and pieces.
std::uint64_t FileBytes(const Places& places);

struct TableBytes {
  std::vector<std::byte> header;  // for the file's beginning
  std::vector<std::byte> table;   // for PackedTable::end
};
TableBytes Write(const PackedTable& table);

// A file to read: its size, and what copies bytes from an offset on.
struct PackedSource {
  std::uint64_t bytes = 0;
  std::function<Status(std::uint64_t, std::span<std::byte>)> read;
};

// Reads header and table of a file for a model and a layout. Errors, without the path: kCorrupt for bytes that break the
// format or are not those that were written; kUnsupported for another version or layout; kNotFound for another model;
// those of the source.
Result<PackedTable> Read(const PackedSource& file, const FileIdentity& model, std::uint64_t layout);

// Reads the path of the model that a file was made of; empty: unknown. Errors: as Read for its header.
Result<std::string> ReadModelPath(const PackedSource& file);

}  // namespace kvcache::packed
