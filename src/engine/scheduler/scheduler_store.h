// What a scheduler's request has to do with the engine's store.
//
// Thread safety: the engine's thread.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "engine/persist/prefix_store.h"
#include "engine/persist/store_loader.h"

namespace kvcache {

struct JobStore {
  std::shared_ptr<StoreLoad> load{};  // in progress
  std::chrono::steady_clock::time_point began{};
  std::vector<Position> captures{};  // that the request takes after the load
  Position loaded = 0;               // tokens that came from the store
  PrefixStore::Known known{};        // what the store has of the request's text
  bool saves = false;                // `known` is complete: what is evaluated is stored
  bool is_first = false;             // the request's report does not know yet what the load gives
  bool has_output = false;           // the sequence has the stored output of an encoder

  bool is_loading() const { return load != nullptr; }
};

}  // namespace kvcache
