// Writes the model of support/scripted_model.h: kvcache_scripted_model PATH [TOOL ARGUMENTS CONTEXT].
#include "support/scripted_model.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 2 && argc != 5) return 2;
  kvcache::Script script;
  if (argc == 5) {
    script.tool = argv[2];
    script.arguments = argv[3];
    script.context = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10));
  }
  const kvcache::Status status = kvcache::ScriptedModel::Write(argv[1], script);
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
