#include "replay/line_reader.h"

#include <fcntl.h>
#include <lzma.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 16;
constexpr std::uint64_t kMaxXzBytes = std::uint64_t{256} << 20;  // memory of the decoder
constexpr unsigned char kXzMagic[] = {0xfd, '7', 'z', 'X', 'Z', 0};

std::string SystemError(const std::string& what) {
  return StrCat(what, ": ", std::strerror(errno));
}

}  // namespace

struct LineReader::Stream {
  ~Stream() {
    if (fd >= 0) (void)close(fd);
    if (compressed) lzma_end(&xz);
  }

  int fd = -1;
  bool compressed = false;
  bool end_of_file = false;
  bool ended = false;  // nothing more comes into `text`
  lzma_stream xz = LZMA_STREAM_INIT;
  std::vector<unsigned char> block;
  std::string text;      // what was read and not returned
  std::size_t at = 0;    // the beginning of the next line in `text`
  std::size_t seen = 0;  // bytes of `text` that have no newline behind `at`
};

LineReader::LineReader(std::string path)
    : path_(std::move(path)), stream_(std::make_unique<Stream>()) {}

LineReader::~LineReader() = default;

std::string LineReader::Where() const {
  return StrCat(path_, ":", number_);
}

namespace {

// Reads until the block is full or the file ends. Returns false on an error of the system.
bool ReadBlock(int fd, std::vector<unsigned char>& block, bool& end) {
  block.resize(kBlockBytes);
  std::size_t filled = 0;
  while (filled < block.size()) {
    const ssize_t count = read(fd, block.data() + filled, block.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) {
      end = true;
      break;
    }
    filled += static_cast<std::size_t>(count);
  }
  block.resize(filled);
  return true;
}

}  // namespace

Result<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path) {
  auto reader = std::unique_ptr<LineReader>(new LineReader(path));
  Stream& stream = *reader->stream_;
  stream.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (stream.fd < 0) {
    return Status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
                  SystemError(StrCat("cannot open ", path)));
  }
  if (!ReadBlock(stream.fd, stream.block, stream.end_of_file)) {
    return Status(StatusCode::kIo, SystemError(StrCat("cannot read ", path)));
  }
  const std::size_t magic = sizeof(kXzMagic);
  if (stream.block.size() < magic || std::memcmp(stream.block.data(), kXzMagic, magic) != 0) {
    stream.text.assign(stream.block.begin(), stream.block.end());
    stream.ended = stream.end_of_file;
    return reader;
  }
  if (lzma_stream_decoder(&stream.xz, kMaxXzBytes, LZMA_CONCATENATED) != LZMA_OK) {
    return OutOfMemory(StrCat(path, ": no memory to decompress"));
  }
  stream.compressed = true;
  stream.xz.next_in = stream.block.data();
  stream.xz.avail_in = stream.block.size();
  return reader;
}

// Adds the next bytes of the file to `text`.
Status LineReader::Fill() {
  Stream& stream = *stream_;
  stream.text.erase(0, stream.at);
  stream.at = 0;
  if (!stream.compressed || (stream.xz.avail_in == 0 && !stream.end_of_file)) {
    if (!ReadBlock(stream.fd, stream.block, stream.end_of_file)) {
      return {StatusCode::kIo, SystemError(StrCat("cannot read ", path_))};
    }
    stream.xz.next_in = stream.block.data();
    stream.xz.avail_in = stream.block.size();
  }
  if (!stream.compressed) {
    stream.text.append(stream.block.begin(), stream.block.end());
    stream.ended = stream.end_of_file;
    return Status::Ok();
  }
  unsigned char out[kBlockBytes];
  stream.xz.next_out = out;
  stream.xz.avail_out = sizeof(out);
  const lzma_ret result = lzma_code(&stream.xz, stream.end_of_file ? LZMA_FINISH : LZMA_RUN);
  stream.text.append(reinterpret_cast<const char*>(out), sizeof(out) - stream.xz.avail_out);
  if (result == LZMA_STREAM_END) {
    stream.ended = true;
  } else if (result == LZMA_MEM_ERROR || result == LZMA_MEMLIMIT_ERROR) {
    return OutOfMemory(StrCat(path_, ": no memory to decompress; at most ", HumanBytes(kMaxXzBytes),
                              " are allowed"));
  } else if (result != LZMA_OK) {
    return Corrupt(
        StrCat(path_, ": the compressed bytes are damaged or incomplete after line ", number_));
  }
  return Status::Ok();
}

Result<bool> LineReader::Next(std::string& line) {
  Stream& stream = *stream_;
  stream.seen = 0;
  while (true) {
    const std::size_t end = stream.text.find('\n', stream.at + stream.seen);
    if (end != std::string::npos) {
      line.assign(stream.text, stream.at, end - stream.at);
      stream.at = end + 1;
      ++number_;
      return true;
    }
    stream.seen = stream.text.size() - stream.at;
    if (stream.seen > kMaxLineBytes) {
      return Corrupt(StrCat(path_, ":", number_ + 1, ": the line has more than ", kMaxLineBytes,
                            " bytes, which is the most"));
    }
    if (stream.ended) break;
    KVCACHE_RETURN_IF_ERROR(Fill());
  }
  if (stream.seen == 0) return false;
  line.assign(stream.text, stream.at, stream.seen);
  stream.at = stream.text.size();
  ++number_;
  return true;
}

}  // namespace kvcache
