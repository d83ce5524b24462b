// Reads any bytes as a model file: checks it, reads every value, array and tensor, describes it,
// and loads it as a model. Sanitizers detect memory errors; the checks here are the reader's
// contract.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "gguf/gguf.h"
#include "inspect/inspect.h"
#include "kvcache/cpu_backend.h"
#include "model/model.h"

namespace kvcache {
namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

// Reads every byte of the span.
void Touch(std::span<const std::byte> bytes) {
  volatile std::uint8_t sum = 0;
  for (const std::byte byte : bytes) sum = static_cast<std::uint8_t>(sum + std::uint8_t(byte));
}

template <typename Array>
void ReadArray(const Result<Array>& array) {
  if (!array.ok()) return;
  std::size_t count = 0;
  for (auto value : *array) {
    if constexpr (requires { value.data(); }) Touch(std::as_bytes(std::span(value)));
    ++count;
  }
  Require(count == array->size());
}

void ReadEntry(const GgufFile& file, const GgufEntry& entry) {
  Require(file.Find(entry.key) == &entry);
  const auto text = file.GetString(entry.key);
  if (text.ok()) Touch(std::as_bytes(std::span(*text)));
  const auto number = file.GetUint(entry.key);
  const auto integer = file.GetInt(entry.key);
  if (number.ok() && integer.ok()) Require(static_cast<std::int64_t>(*number) == *integer);
  Require(file.GetFloat(entry.key).ok() + file.GetBool(entry.key).ok() + text.ok() <= 1);
  ReadArray(file.GetStrings(entry.key));
  ReadArray(file.GetInts(entry.key));
  ReadArray(file.GetFloats(entry.key));
  ReadArray(file.GetBools(entry.key));
}

void ReadTensor(const GgufFile& file, const GgufTensor& tensor) {
  Require(file.FindTensor(tensor.name) == &tensor);
  Require(tensor.offset % file.alignment() == 0);
  Require(tensor.offset + tensor.bytes.size() <= file.size_bytes());
  Touch(tensor.bytes);
  const auto view = tensor.View();
  if (view.ok()) Require(view->elements() == tensor.elements());
}

Backend& SharedBackend() {
  static const auto backend = std::move(*MakeCpuBackend({.threads = 1}));
  return *backend;
}

void ReadAll(const GgufFile& file) {
  for (const GgufEntry& entry : file.entries()) ReadEntry(file, entry);
  for (const GgufTensor& tensor : file.tensors()) ReadTensor(file, tensor);
  const ModelDescription description = DescribeModelFile(file);
  Require(DescriptionJson(description).is_object());
  const std::string text = DescriptionText(description, InspectDetail::kTensors);
  Touch(std::as_bytes(std::span(text)));
  const auto model = LoadModel(file, SharedBackend());
  Require(model.ok() || !model.status().message().empty());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = kvcache::GgufFile::Parse(bytes, "fuzz");
  if (file.ok()) kvcache::ReadAll(**file);
  return 0;
}
