// kvcache_write_hf MODEL.gguf DIRECTORY: writes a model in Hugging Face's layout, for tests of the command
// line.
#include <cstdio>

#include "import/hf_writer.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto file = kvcache::GgufFile::Open(argv[1]);
  if (!file.ok()) {
    (void)std::fprintf(stderr, "%s\n", file.status().message().c_str());
    return 1;
  }
  kvcache::WriteHfDirectory(**file, argv[2]);
  return 0;
}
