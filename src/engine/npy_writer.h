// Writes a float32 matrix row by row as a NumPy .npy file (format 1.0).
//
// The file appears under its name only when Close has succeeded: before, it is NAME.partial. A
// name that is a link stands for the file it points to. What is no regular file (a pipe, a
// device) is written to as it is, never replaced.
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
  ~NpyWriter();  // removes the partial file if Close has not succeeded

  // Appends values in row order. REQUIRES: rows × columns in sum before Close.
  Status Write(std::span<const float> values);

  Status Close();

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  explicit NpyWriter(std::string path);
  std::string WrittenPath() const { return replaces_ ? target_ + ".partial" : target_; }
  void RemovePartial();
  Status Failed(const char* what) const;

  std::string path_;      // as given
  std::string target_;    // what it points to
  bool replaces_ = true;  // the target, by the partial file; else the target is written to
  std::unique_ptr<std::FILE, FileCloser> file_;
};

}  // namespace kvcache
