#include "support/counting_locks.h"

#include <features.h>

#include <atomic>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVCACHE_LOCKS_NOT_COUNTED
#endif
#elif defined(__SANITIZE_THREAD__)
#define KVCACHE_LOCKS_NOT_COUNTED
#endif

#if defined(__GLIBC__) && !defined(KVCACHE_LOCKS_NOT_COUNTED)

#include <dlfcn.h>
#include <pthread.h>

namespace {

std::atomic<std::int64_t> locks{0};

// Returns the C library's function of that name, which the one in this program replaces.
template <class Function>
Function* Real(std::atomic<Function*>& found, const char* name) {
  Function* function = found.load(std::memory_order_acquire);
  if (function == nullptr) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
    found.store(function, std::memory_order_release);
  }
  return function;
}

}  // namespace

// The C library declares these functions, so their names and types must be its own.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static constinit std::atomic<int (*)(pthread_mutex_t*)> real{nullptr};
  locks.fetch_add(1, std::memory_order_relaxed);
  return Real(real, "pthread_mutex_lock")(mutex);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  static constinit std::atomic<int (*)(pthread_rwlock_t*)> real{nullptr};
  locks.fetch_add(1, std::memory_order_relaxed);
  return Real(real, "pthread_rwlock_rdlock")(lock);
}
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  static constinit std::atomic<int (*)(pthread_rwlock_t*)> real{nullptr};
  locks.fetch_add(1, std::memory_order_relaxed);
  return Real(real, "pthread_rwlock_wrlock")(lock);
}

namespace kvcache::testing {

std::optional<std::int64_t> LockCount() {
  return locks.load();
}

}  // namespace kvcache::testing

#else

namespace kvcache::testing {

std::optional<std::int64_t> LockCount() {
  return std::nullopt;
}

}  // namespace kvcache::testing

#endif
