// Fetches one blob.
//
// Thread safety: one thread at a time.
#pragma once

#include "kvcache/status.h"
#include "model_store/model_store.h"
#include "pull/fetcher.h"
#include "pull/plan.h"
#include "pull/pull.h"

namespace kvcache::pull {

// Puts the blob of a layer into the store. A break is mended by another request for what is left.
// Errors: as PullModel.
Status FetchBlob(const ModelStore& store, Fetcher& fetcher, const PlannedLayer& planned,
                 const PullOptions& options);

}  // namespace kvcache::pull
