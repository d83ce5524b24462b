// Writes a GGUF file from tensors that are converted on the way.
//
// A plan describes one tensor of the file: the bytes that it comes from, the order of its rows, a
// change of its values, and its type. Tensors whose type, rows and values stay are copied as bytes.
// All others are converted through f32. Threads share the work; the file does not depend on them.
//
// Thread safety: values and a free function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/status.h"

namespace kvcache {

enum class ValueChange : std::uint8_t {
  kNone,
  kAddOne,       // x + 1
  kNegativeExp,  // -e^x
};

struct TensorPlan {
  std::string name;
  std::vector<std::int64_t> dims;  // fastest first; the file's
  GgmlType type = GgmlType::kF32;  // the file's
  GgmlType source_type = GgmlType::kF32;
  // Rows of dims[0] values. The parts have equal sizes and are joined.
  std::vector<std::span<const std::byte>> parts = {};
  // Returns the row of the joined parts for a row of the file; empty: the same row.
  std::function<std::int64_t(std::int64_t)> source_row = {};
  ValueChange change = ValueChange::kNone;
  // These values instead of `parts`, unless empty.
  std::vector<float> values = {};
  // Called with bytes of `parts` that were read and are not needed again; may be empty.
  std::function<void(std::span<const std::byte>)> release = {};

  std::int64_t elements() const;
  std::int64_t rows() const { return dims.empty() ? 0 : elements() / dims[0]; }
};

// Writes the file at `path`: the metadata of `header`, which has no tensors yet, and the tensors in
// their order. `threads` 0: one per core. Errors: those of GgufWriter, with the tensor's name those
// of Quantize. After an error there is no new file at `path`.
Status WriteTensors(GgufHeader header, const std::vector<TensorPlan>& plans,
                    const std::string& path, int threads = 0);

}  // namespace kvcache
