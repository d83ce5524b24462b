// Writes the model of support/scripted_model.h: kvcache_scripted_model PATH.
#include "support/scripted_model.h"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const kvcache::Status status = kvcache::ScriptedModel::Write(argv[1]);
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
