#include "engine/npy_writer.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kvcache {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie");

namespace {

// Magic, version, header length and header, padded so that the data begins at a multiple of 64.
std::string Header(std::int64_t rows, std::int64_t columns) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) +
                     ", " + std::to_string(columns) + "), }";
  constexpr std::size_t kPrefix = 10;
  text.resize((kPrefix + text.size() + 1 + 63) / 64 * 64 - kPrefix - 1, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

NpyWriter::NpyWriter(std::string path) : path_(std::move(path)), target_(path_) {
  std::error_code ignored;
  const std::filesystem::path real = std::filesystem::canonical(path_, ignored);
  if (!ignored) target_ = real.string();
  const auto status = std::filesystem::status(target_, ignored);
  replaces_ = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
}

Result<NpyWriter> NpyWriter::Create(const std::string& path, std::int64_t rows,
                                    std::int64_t columns) {
  NpyWriter writer(path);
  writer.file_.reset(std::fopen(writer.WrittenPath().c_str(), "wb"));
  if (!writer.file_) return writer.Failed("cannot create");
  const std::string header = Header(rows, columns);
  if (std::fwrite(header.data(), 1, header.size(), writer.file_.get()) != header.size()) {
    return writer.Failed("cannot write");
  }
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_) RemovePartial();
}

void NpyWriter::RemovePartial() {
  file_.reset();
  if (replaces_) (void)std::remove(WrittenPath().c_str());
}

Status NpyWriter::Write(std::span<const float> values) {
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size()) {
    return Failed("cannot write");
  }
  return Status::Ok();
}

Status NpyWriter::Close() {
  Status status = Status::Ok();
  if (std::fclose(file_.release()) != 0) {
    status = Failed("cannot write");
  } else if (replaces_ && std::rename(WrittenPath().c_str(), target_.c_str()) != 0) {
    status = Failed("cannot rename");
  }
  if (!status.ok()) RemovePartial();
  return status;
}

Status NpyWriter::Failed(const char* what) const {
  return {StatusCode::kIo, path_ + ": " + what + ": " + std::strerror(errno)};
}

}  // namespace kvcache
