// GGUF model files, versions 2 and 3, little-endian: metadata and tensors, read in place.
//
//   | magic, version, counts | key, type, value … | name, dims, type, offset … | pad | data |
//
// Open() checks everything before it returns, so all later reads stay inside the file. A hostile
// file costs time and memory in proportion to its size at most. Open() refuses missing bytes;
// impossible counts, lengths and products; unknown types; keys or tensors that occur twice; tensors
// that overlap, are unaligned, or extend past the end of the file; and arrays of arrays, which no
// writer produces. Its messages have the byte offset and the key or tensor.
//
// A model may be split into parts, NAME-00001-of-00003.gguf and so on, each of which is a GGUF file
// (split_file.h). Open() takes the name of any part. The metadata is that of the first part, and the
// tensors are those of all parts.
//
// Views (strings, arrays, tensors) point into the mappings and are valid while the GgufFile exists.
//
// Thread safety: const calls from any number of threads.
// Source: ggml's docs/gguf.md. This reader is stricter than ggml's in the points above, and laxer
// in two: it accepts gaps between tensors, and tensors in any order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/ggml_type.h"
#include "gguf/gguf_value.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "platform/mapped_file.h"

namespace kvcache {

struct GgufTensor {
  std::string_view name;
  const GgmlTypeInfo* type = nullptr;            // never null
  int rank = 0;                                  // 0 (one value) to 4
  std::array<std::int64_t, 4> dims{1, 1, 1, 1};  // fastest first; 1 from `rank` on
  std::size_t part = 0;                          // in GgufFile::parts
  std::uint64_t offset = 0;                      // in the part's file
  std::span<const std::byte> bytes;              // dense

  std::int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }

  // Returns a view of the mapped data, aligned to the file's alignment. Never write through it: the
  // memory is read-only. Errors: kUnsupported, with name and type, for a type without DType.
  Result<TensorView> View() const;
};

// One file of a model: all of it, unless the model is split.
struct GgufPart {
  std::string path;
  MappedFile mapping;  // empty after Parse()
  std::span<const std::byte> bytes;
  std::uint64_t data_offset = 0;

  // Everything before the tensors' bytes.
  std::span<const std::byte> header() const { return bytes.first(data_offset); }
};

class GgufFile {
 public:
  // Maps and checks the file, or the parts of a split one; `path` is as in PartPaths. Errors: those
  // of MappedFile::Open; kCorrupt if the bytes break the format, or if parts do not belong together;
  // kUnsupported for version 1, big-endian files and unknown tensor types. All messages begin with
  // the path of a file.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);

  // The same over memory that outlives the result; `path` is for messages only.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes,
                                                 std::string path);

  const std::string& path() const { return path_; }
  std::span<const GgufPart> parts() const { return parts_; }  // at least one
  // Of all parts.
  std::uint64_t size_bytes() const;
  // All zeros after Parse(). The identity of a split file is that of all parts together.
  FileIdentity identity() const;
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }

  // In the order of the parts, and of each file.
  std::span<const GgufEntry> entries() const { return entries_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }

  // Returns nullptr if there is none. O(log n).
  const GgufEntry* Find(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // Returns the tensor's View(). Errors: those of View(); kNotFound, with the name.
  Result<TensorView> Tensor(std::string_view name) const;

  // Returns the value of a key. Integers of any width convert to integers and both float widths to
  // floats; nothing else converts. Errors: kNotFound: the key is missing; kInvalidArgument: the
  // value has another type or does not fit. Messages have the key, the expected and the found type;
  // callers add the path.
  Result<std::string_view> GetString(std::string_view key) const;
  Result<std::uint64_t> GetUint(std::string_view key) const;
  Result<std::int64_t> GetInt(std::string_view key) const;
  Result<double> GetFloat(std::string_view key) const;
  Result<bool> GetBool(std::string_view key) const;
  Result<GgufStrings> GetStrings(std::string_view key) const;
  Result<GgufInts> GetInts(std::string_view key) const;
  Result<GgufFloats> GetFloats(std::string_view key) const;
  Result<GgufBools> GetBools(std::string_view key) const;

  // The same, but returns `otherwise` for a missing key. A wrong type is still an error.
  Result<std::string_view> GetStringOr(std::string_view key, std::string_view otherwise) const;
  Result<std::uint64_t> GetUintOr(std::string_view key, std::uint64_t otherwise) const;
  Result<std::int64_t> GetIntOr(std::string_view key, std::int64_t otherwise) const;
  Result<double> GetFloatOr(std::string_view key, double otherwise) const;
  Result<bool> GetBoolOr(std::string_view key, bool otherwise) const;

  // Hints for the pages of a tensor (MappedFile). No effect after Parse().
  void WillNeed(const GgufTensor& tensor) const {
    parts_[tensor.part].mapping.WillNeed(tensor.bytes);
  }
  void Drop(const GgufTensor& tensor) const { parts_[tensor.part].mapping.Drop(tensor.bytes); }

 private:
  friend class GgufParser;
  friend class GgufJoiner;
  GgufFile() = default;

  // Maps and checks one file.
  static Result<std::unique_ptr<GgufFile>> OpenPart(const std::string& path);

  Result<const GgufEntry*> Require(std::string_view key, std::string_view expected) const;
  Status WrongType(const GgufEntry& entry, std::string_view expected) const;

  std::string path_;
  std::vector<GgufPart> parts_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 0;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint32_t> entries_by_key_;   // indices, sorted
  std::vector<std::uint32_t> tensors_by_name_;  // indices, sorted
};

}  // namespace kvcache
