#include "gguf/gguf_value.h"

namespace kvcache {

std::string_view GgufTypeName(GgufType type) {
  switch (type) {
    case GgufType::kUint8: return "uint8";
    case GgufType::kInt8: return "int8";
    case GgufType::kUint16: return "uint16";
    case GgufType::kInt16: return "int16";
    case GgufType::kUint32: return "uint32";
    case GgufType::kInt32: return "int32";
    case GgufType::kFloat32: return "float32";
    case GgufType::kBool: return "bool";
    case GgufType::kString: return "string";
    case GgufType::kArray: return "array";
    case GgufType::kUint64: return "uint64";
    case GgufType::kInt64: return "int64";
    case GgufType::kFloat64: return "float64";
  }
  return "unknown";
}

std::size_t GgufTypeBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  return 0;
}

bool IsGgufInteger(GgufType type) {
  return GgufTypeBytes(type) != 0 && type != GgufType::kBool && type != GgufType::kFloat32 &&
         type != GgufType::kFloat64;
}

std::int64_t GgufIntAt(const GgufEntry& entry, std::uint64_t i) {
  const std::byte* at = entry.bytes.data() + i * GgufTypeBytes(entry.element);
  switch (entry.element) {
    case GgufType::kBool:
    case GgufType::kUint8: return LoadUnaligned<std::uint8_t>(at);
    case GgufType::kInt8: return LoadUnaligned<std::int8_t>(at);
    case GgufType::kUint16: return LoadUnaligned<std::uint16_t>(at);
    case GgufType::kInt16: return LoadUnaligned<std::int16_t>(at);
    case GgufType::kUint32: return LoadUnaligned<std::uint32_t>(at);
    case GgufType::kInt32: return LoadUnaligned<std::int32_t>(at);
    case GgufType::kUint64:
    case GgufType::kInt64: return LoadUnaligned<std::int64_t>(at);
    default: return 0;
  }
}

double GgufFloatAt(const GgufEntry& entry, std::uint64_t i) {
  if (entry.element == GgufType::kFloat64) {
    return LoadUnaligned<double>(entry.bytes.data() + i * sizeof(double));
  }
  return LoadUnaligned<float>(entry.bytes.data() + i * sizeof(float));
}

}  // namespace kvcache
