// Processes that a test starts, stops and kills.
//
// Thread safety: that of the object.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <optional>
#include <thread>

namespace kvcache::store {

// Memory that this process and its children share.
template <class Value>
class SharedWithChildren {
 public:
  SharedWithChildren()
      : value_(new (mmap(nullptr, sizeof(Value), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Value()) {}
  ~SharedWithChildren() { (void)munmap(static_cast<void*>(value_), sizeof(Value)); }
  SharedWithChildren(const SharedWithChildren&) = delete;
  SharedWithChildren& operator=(const SharedWithChildren&) = delete;
  Value& operator*() const { return *value_; }

 private:
  Value* const value_;
};

// A process that runs a function and ends with its result. It is killed at the end of this object's life, or of
// this process.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body) : process_(fork()) {
    if (process_ != 0) return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body());
  }
  ~ChildProcess() {
    if (process_ > 0 && !status_) Kill();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t process() const { return process_; }
  // Returns when it is stopped.
  void Stop() const {
    (void)kill(process_, SIGSTOP);
    int status = 0;
    (void)waitpid(process_, &status, WUNTRACED);
  }
  void Continue() const { (void)kill(process_, SIGCONT); }
  void Kill() {
    (void)kill(process_, SIGKILL);
    int status = 0;
    (void)waitpid(process_, &status, 0);
    status_ = status;
  }
  // Returns its exit status; 1000 and the signal that ended it; -1 if it takes longer. Looks once at least.
  int WaitFor(std::chrono::seconds max) {
    const auto end = std::chrono::steady_clock::now() + max;
    while (!status_) {
      int status = 0;
      if (waitpid(process_, &status, WNOHANG) == process_) status_ = status;
      if (std::chrono::steady_clock::now() >= end) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!status_) return -1;
    return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 1000 + WTERMSIG(*status_);
  }

 private:
  const pid_t process_;
  std::optional<int> status_;
};

}  // namespace kvcache::store
