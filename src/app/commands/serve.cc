// kvcache serve: declares the command. The server itself is src/app/serve, which is built only with
// KVCACHE_BUILD_SERVER; CMakeLists.txt then defines KVCACHE_HAVE_SERVER for this file.
#include <memory>

#include "app/commands/command.h"
#include "app/flags/serve_flags.h"
#include "base/errors.h"
#ifdef KVCACHE_HAVE_SERVER
#include "app/serve/serve.h"
#endif

namespace kvcache::app {
namespace {

#ifndef KVCACHE_HAVE_SERVER
Status Serve(const ServeFlags& /*flags*/) {
  return Unsupported(
      "this program was built without the server; './dev serve' builds it with the server, and "
      "so does cmake with -DKVCACHE_BUILD_SERVER=ON");
}
#endif

}  // namespace

Command AddServe(CommandLine& line) {
  const auto flags = std::make_shared<ServeFlags>();
  flags->Add(line.AddCommand("serve", "Serve models to clients of OpenAI's and other APIs"));
  return {"serve", [flags] { return Serve(*flags); }};
}

}  // namespace kvcache::app
