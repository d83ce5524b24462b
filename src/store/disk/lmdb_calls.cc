#include "store/disk/lmdb_calls.h"

#include <mutex>
#include <vector>

namespace kvcache::store {

void LeaveToTheSystem(void* object) {
  struct Left {
    std::mutex mutex;
    std::vector<void*> all;
  };
  static auto* const left = new Left;
  const std::lock_guard lock(left->mutex);
  left->all.push_back(object);
}

}  // namespace kvcache::store
