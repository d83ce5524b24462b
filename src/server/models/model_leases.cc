// The typed forms of ModelHost's leases.
#include <memory>
#include <utility>

#include "server/models/model_host.h"

namespace kvcache::server {

void ModelHost::Acquire(const ServedModel& model, std::optional<double> stay_seconds,
                        std::function<void(Result<ModelLease>)> ready) {
  AcquireService(model, stay_seconds, [ready = std::move(ready)](Result<ServiceLease> lease) {
    if (!lease.ok()) return ready(std::move(lease).TakeStatus());
    ready(std::static_pointer_cast<TextService>(std::move(*lease)));
  });
}

void ModelHost::AcquireEmbedder(const ServedModel& model, std::optional<double> stay_seconds,
                                std::function<void(Result<EmbeddingLease>)> ready) {
  ServedModel asked = model;
  asked.embeds = true;
  AcquireService(asked, stay_seconds, [ready = std::move(ready)](Result<ServiceLease> lease) {
    if (!lease.ok()) return ready(std::move(lease).TakeStatus());
    ready(std::static_pointer_cast<EmbeddingService>(std::move(*lease)));
  });
}

std::vector<LoadedModel> ModelHost::LoadedToGenerate() {
  std::vector<LoadedModel> models = Loaded();
  std::erase_if(models, [](const LoadedModel& loaded) { return loaded.lease == nullptr; });
  return models;
}

}  // namespace kvcache::server
