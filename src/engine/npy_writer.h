// Writes a float32 matrix row by row as a NumPy .npy file (format 1.0). As platform/output/output_file.h
// says, a new file appears under its name only when Close has succeeded.
//
// Thread safety: one thread at a time.
// Source: the documentation of numpy.lib.format.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "platform/output/output_file.h"

namespace kvcache {

class NpyWriter {
 public:
  // Creates a file of rows × columns values, and reserves its space. Errors here and below: those
  // of OutputFile.
  static Result<NpyWriter> Create(const std::string& path, std::int64_t rows, std::int64_t columns);

  // Appends values in row order. REQUIRES: rows × columns values in total before Close.
  Status Write(std::span<const float> values);

  // Completes the file.
  Status Close();

 private:
  explicit NpyWriter(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
};

}  // namespace kvcache
