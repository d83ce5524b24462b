// blocks_oracle: computes this project's values for compare.py.
//
//   blocks_oracle dequantize TYPE < BYTES > FLOATS
//   blocks_oracle quantize TYPE < FLOATS > BYTES
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tensor/quantize.h"

namespace kvcache {
namespace {

Status Convert(const std::string& what, DType type, const std::string& in, std::string& out) {
  const DTypeInfo info = InfoOf(type);
  const auto block = static_cast<std::size_t>(info.block_size);
  const auto block_bytes = static_cast<std::size_t>(info.block_bytes);
  const std::size_t blocks = in.size() / (what == "quantize" ? block * sizeof(float) : block_bytes);
  std::vector<float> values(blocks * block);
  std::vector<std::byte> bytes(blocks * block_bytes);
  if (what == "quantize") {
    std::memcpy(values.data(), in.data(), blocks * block * sizeof(float));
    KVCACHE_RETURN_IF_ERROR(Quantize(type, values, bytes));
    out.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status::Ok();
  }
  std::memcpy(bytes.data(), in.data(), bytes.size());
  KVCACHE_RETURN_IF_ERROR(Dequantize(type, bytes, values));
  out.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return Status::Ok();
}

int Main(const std::string& what, const std::string& name) {
  for (const DType type :
       {DType::kQ4_0,  DType::kQ4_1,   DType::kQ5_0,    DType::kQ5_1,  DType::kQ8_0,
        DType::kQ4_K,  DType::kQ5_K,   DType::kQ6_K,    DType::kMXFP4, DType::kQ2_K,
        DType::kQ3_K,  DType::kIQ4_NL, DType::kIQ4_XS,  DType::kIQ3_S, DType::kIQ3_XXS,
        DType::kIQ2_S, DType::kIQ2_XS, DType::kIQ2_XXS, DType::kIQ1_S, DType::kIQ1_M,
        DType::kTQ1_0, DType::kTQ2_0,  DType::kNVFP4}) {
    if (InfoOf(type).name != name) continue;
    const std::string in(std::istreambuf_iterator<char>(std::cin), {});
    std::string out;
    const Status status = Convert(what, type, in, out);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    std::cout.write(out.data(), static_cast<std::streamsize>(out.size()));
    return status.ok() && std::cout.flush() ? 0 : 1;
  }
  std::fprintf(stderr, "blocks_oracle: unknown block type '%s'\n", name.c_str());
  return 2;
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  return argc == 3 ? kvcache::Main(argv[1], argv[2]) : 2;
}
