// Writes a float32 matrix row by row as a NumPy .npy file (format 1.0), by the rules of
// platform/output_file.h: a new file appears under its name only when Close has succeeded.
// Source: numpy.lib.format's documentation.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "platform/output_file.h"

namespace kvcache {

class NpyWriter {
 public:
  // Makes room for rows × columns values. Errors: those of OutputFile, here and below.
  static Result<NpyWriter> Create(const std::string& path, std::int64_t rows, std::int64_t columns);

  // Appends values in row order. REQUIRES: rows × columns in sum before Close.
  Status Write(std::span<const float> values);

  Status Close();

 private:
  explicit NpyWriter(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
};

}  // namespace kvcache
