// Runs routes: reads the bodies of requests on threads of its own, and loads the models that they name.
//
//   I/O thread ─► AtOnce
//              ─► worker ─► OnWorker
//                        ─► JSON, pictures, volatile lines ─► model's lease ─► worker ─► WithModel
//                        ─► JSON ─► model's lease ─► worker ─► WithEmbedder
//              ─► manager ─► JSON ─► ChangesModels
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/worker.h"
#include "server/request/volatile_lines.h"
#include "server/route.h"

namespace kvcache::server {

struct RouteRunnerOptions {
  // Requests that wait to be read, and the bytes of their bodies.
  std::size_t max_queued = 0;
  std::size_t queued_bytes = 0;
  VolatileLines volatile_lines{};
  bool ignore_images = false;
};

class RouteRunner {
 public:
  explicit RouteRunner(RouteRunnerOptions options);

  // Answers the request, or lets another thread answer. The route must outlive this.
  void Run(const ServerContext& context, const Route& route, HttpRequest request);

  // Returns whether no request is being read.
  bool idle() const { return worker_.idle() && manager_.idle(); }
  // Drops what waits, and all that comes later.
  void End();

 private:
  struct Asked;

  Worker& FreePuller();
  void RunBody(const ServerContext& context, const Route& route, const std::string& text);
  template <typename Kind>
  void FindAndRun(const std::shared_ptr<const Asked>& asked, const Kind& route,
                  FilePurpose purpose);
  void RunWithModel(const std::shared_ptr<const Asked>& asked, const ServedModel& model,
                    std::optional<double> stay_seconds);
  void RunWithEmbedder(const std::shared_ptr<const Asked>& asked, const ServedModel& model,
                       std::optional<double> stay_seconds);

  RouteRunnerOptions options_;
  Worker worker_;                                 // a large prompt takes long to encode
  Worker manager_;                                // weights take long to copy
  std::vector<std::unique_ptr<Worker>> pullers_;  // fetch models
};

}  // namespace kvcache::server
