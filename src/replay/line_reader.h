// Reads the lines of a text file, plain or compressed with xz.
//
// A block of the file and one line are in memory at a time. A line has at most kMaxLineBytes.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

  // Opens a file, whose first bytes say whether it is compressed. Errors: kNotFound and kIo with the
  // operating system's words; kOutOfMemory. All errors of this class name the path.
  static Result<std::unique_ptr<LineReader>> Open(const std::string& path);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Replaces `line` by the next line, without its newline. Returns false at the end of the file.
  // Errors: kIo; kCorrupt for compressed bytes that are damaged or incomplete, and for a line that is
  // too long.
  Result<bool> Next(std::string& line);

  // Returns the number of the last line, from 1.
  std::int64_t number() const { return number_; }
  // Returns "path:number", for messages.
  std::string Where() const;

 private:
  struct Stream;
  explicit LineReader(std::string path);
  Status Fill();

  const std::string path_;
  std::unique_ptr<Stream> stream_;
  std::int64_t number_ = 0;
};

}  // namespace kvcache
