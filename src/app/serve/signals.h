// The signals that `kvcache serve` waits for.
//
// With TLS, SIGHUP says that the certificate has changed. Without TLS, SIGHUP ends the server, unless the process
// that started the server let it ignore the signal, as nohup does.
//
// Thread safety: one thread at a time.
#pragma once

#include <csignal>
#include <functional>

namespace kvcache::app {

class Signals {
 public:
  // Blocks the signals, so that only Wait takes them. REQUIRES: the process has no other thread.
  explicit Signals(bool has_tls);

  // Waits for a signal that ends the server. Calls `reload` for each SIGHUP before it, with TLS.
  void Wait(const std::function<void()>& reload) const;

  // Ends the process at the next signal that would end the server.
  void EndAtNext() const;

 private:
  const bool has_tls_;
  sigset_t set_{};
};

}  // namespace kvcache::app
