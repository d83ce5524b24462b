// Safetensors files: named tensors in one file.
//
//   | header's size (u64, little-endian) | header: JSON | data |
//
// The header maps names to {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}; offsets
// count from the start of the data. "__metadata__" maps texts to texts.
//
// Open() checks everything before it returns: sizes that contradict shapes, ranges outside of the
// data, gaps and overlaps, unknown types and names that occur twice are refused. A hostile file
// costs time and memory in proportion to its size at most.
//
// Thread safety: const calls from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "platform/mapped_file.h"

namespace kvcache {

struct SafeTensor {
  std::string name;
  std::string type;                  // as in the file: F32, F16, BF16, I64 …
  std::vector<std::int64_t> shape;   // slowest first; empty: one value
  std::span<const std::byte> bytes;  // dense; points into the file

  std::int64_t elements() const;
};

class SafetensorsFile {
 public:
  // Maps and checks the file. Errors: those of MappedFile::Open; kCorrupt, with the path and the
  // tensor; kUnsupported: an unknown type.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  // The same over memory that outlives the result; `path` is for messages only.
  static Result<std::unique_ptr<SafetensorsFile>> Parse(std::span<const std::byte> bytes,
                                                        std::string path);

  const std::string& path() const { return path_; }

  // Sorted by name.
  std::span<const SafeTensor> tensors() const { return tensors_; }

  // Returns nullptr if there is none. O(log n).
  const SafeTensor* Find(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  Status ParseHeader(std::string_view header, std::span<const std::byte> data);

  std::string path_;
  MappedFile mapping_;
  std::vector<SafeTensor> tensors_;
};

}  // namespace kvcache
