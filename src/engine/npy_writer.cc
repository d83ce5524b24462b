#include "engine/npy_writer.h"

#include <bit>
#include <utility>

#include "base/strings.h"

namespace kvcache {

static_assert(std::endian::native == std::endian::little,
              "rows are written with the bytes of memory");

namespace {

// Magic, version, header length and header, padded so that the data begins at a multiple of 64.
std::string Header(std::int64_t rows, std::int64_t columns) {
  std::string text =
      StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ", columns, "), }");
  constexpr std::size_t kPrefix = 10;
  text.resize((kPrefix + text.size() + 1 + 63) / 64 * 64 - kPrefix - 1, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

Result<NpyWriter> NpyWriter::Create(const std::string& path, std::int64_t rows,
                                    std::int64_t columns) {
  const std::string header = Header(rows, columns);
  const auto values = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns);
  KVCACHE_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Create(path, header.size() + values * sizeof(float)));
  KVCACHE_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(header))));
  return NpyWriter(std::move(file));
}

Status NpyWriter::Write(std::span<const float> values) {
  return file_.Write(std::as_bytes(values));
}

Status NpyWriter::Close() {
  return file_.Commit();
}

}  // namespace kvcache
