// Writes GGUF files, version 3. Create() writes the header; then the bytes of the tensors are
// written straight to the file, in any order and from any thread.
//
//   GgufHeader header;
//   header.SetString("general.architecture", "llama");
//   const std::size_t w = header.AddTensor("output.weight", GgmlType::kF32, {64, 100});
//   KVCACHE_ASSIGN_OR_RETURN(auto writer, GgufWriter::Create("m.gguf", std::move(header)));
//   KVCACHE_RETURN_IF_ERROR(writer->Write(w, 0, bytes));   // as often as needed
//   KVCACHE_RETURN_IF_ERROR(writer->Finish());
//
// Tensors are stored in the order in which they were added, each at the next multiple of the
// alignment (32), as ggml requires.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/ggml_type.h"
#include "gguf/gguf_value.h"
#include "kvcache/status.h"
#include "platform/output/new_file.h"

namespace kvcache {

// Metadata and descriptions of the tensors. Setters never fail; Serialize() and Create() report
// errors (a key or tensor that occurs twice, a rank above 4, rows that are not whole blocks).
// Thread safety: one thread at a time.
class GgufHeader {
 public:
  struct Tensor {
    std::string name;
    const GgmlTypeInfo* type = nullptr;  // null: unknown type
    std::vector<std::int64_t> dims;      // fastest first
    std::uint64_t offset = 0;            // from the start of the data
    std::uint64_t size_bytes = 0;
  };

  void SetString(std::string_view key, std::string_view value);
  void SetBool(std::string_view key, bool value);
  void SetUint32(std::string_view key, std::uint32_t value);
  void SetInt32(std::string_view key, std::int32_t value);
  void SetUint64(std::string_view key, std::uint64_t value);
  void SetFloat32(std::string_view key, float value);
  void SetStrings(std::string_view key, std::span<const std::string> values);
  void SetFloats(std::string_view key, std::span<const float> values);
  void SetInts(std::string_view key, std::span<const std::int32_t> values);
  void SetBools(std::string_view key, std::span<const bool> values);
  void SetBytes(std::string_view key, std::span<const std::byte> values);
  // Copies an entry of another file.
  void SetEntry(const GgufEntry& entry);

  // Returns the tensor's index, for GgufWriter::Write.
  std::size_t AddTensor(std::string_view name, GgmlType type, std::span<const std::int64_t> dims);
  std::size_t AddTensor(std::string_view name, GgmlType type,
                        std::initializer_list<std::int64_t> dims) {
    return AddTensor(name, type, std::span(dims.begin(), dims.size()));
  }

  std::span<const Tensor> tensors() const { return tensors_; }
  std::uint64_t data_bytes() const { return data_bytes_; }

  // Returns the bytes of the file before the data, padding included. Errors: kInvalidArgument.
  Result<std::string> Serialize() const;

 private:
  Status CheckKeys() const;
  Status CheckTensors() const;

  std::vector<std::string> keys_;
  std::string entries_;  // as in the file
  std::vector<Tensor> tensors_;
  std::uint64_t data_bytes_ = 0;
};

class GgufWriter {
 public:
  // Creates the file under a temporary name; Finish() renames it to `path`. Errors: those of
  // Serialize() and NewFile::Create(), such as a full disk.
  static Result<std::unique_ptr<GgufWriter>> Create(const std::string& path, GgufHeader header);

  const GgufHeader& header() const { return header_; }

  // Writes part of a tensor's data, beginning at byte `offset` of the tensor. REQUIRES: every byte
  // is written once. Thread-safe. Errors: kInvalidArgument: a range outside the tensor; kIo.
  Status Write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);

  // Syncs the file to disk and renames it to its path. Errors: kInvalidArgument, with the tensor,
  // if fewer or more bytes were written than it has; kIo.
  Status Finish();

 private:
  GgufWriter(GgufHeader header, std::uint64_t data_offset, std::unique_ptr<NewFile> file);

  const GgufHeader header_;
  const std::uint64_t data_offset_;
  std::unique_ptr<NewFile> file_;
  std::vector<std::atomic<std::uint64_t>> written_;  // bytes so far, per tensor
};

}  // namespace kvcache
