// Writes a float32 matrix row by row as a NumPy .npy file (format 1.0).
//
// The file appears under its name only when Close has succeeded: before, it is NAME.partial.
// Source: numpy.lib.format's documentation.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

class NpyWriter {
 public:
  // Errors: kIo with the path and the system's reason, here and below.
  static Result<NpyWriter> Create(const std::string& path, std::int64_t rows, std::int64_t columns);

  NpyWriter(NpyWriter&&) = default;
  NpyWriter& operator=(NpyWriter&&) = default;
  ~NpyWriter();  // removes the partial file if Close was not reached

  // Appends values in row order. REQUIRES: rows × columns in sum before Close.
  Status Write(std::span<const float> values);

  Status Close();

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  NpyWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  std::string PartialPath() const { return path_ + ".partial"; }
  Status Failed(const char* what) const;

  std::string path_;
  std::unique_ptr<std::FILE, FileCloser> file_;
};

}  // namespace kvcache
