// Reads any bytes as a safetensors file: checks it and reads every tensor. Sanitizers detect memory
// errors; the checks here are the reader's contract.
#include <cstdint>
#include <span>
#include <string>

#include "fuzz_input.h"
#include "safetensors/safetensors.h"

namespace kvcache {
namespace {

void Touch(std::span<const std::byte> bytes) {
  volatile std::uint8_t sum = 0;
  for (const std::byte byte : bytes) sum = static_cast<std::uint8_t>(sum + std::uint8_t(byte));
}

void ReadAll(const SafetensorsFile& file, std::size_t size) {
  std::size_t total = 0;
  for (const SafeTensor& tensor : file.tensors()) {
    Check(file.Find(tensor.name) == &tensor);
    Check(tensor.elements() >= 0);
    Touch(tensor.bytes);
    total += tensor.bytes.size();
  }
  Check(total <= size);
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = kvcache::SafetensorsFile::Parse(bytes, "fuzz");
  if (file.ok()) {
    kvcache::ReadAll(**file, size);
  } else {
    kvcache::Check(!file.status().message().empty());
  }
  return 0;
}
