#include "app/serve/signals.h"

#include <unistd.h>

namespace kvcache::app {

Signals::Signals(bool has_tls) : has_tls_(has_tls) {
  struct sigaction inherited {};
  (void)sigaction(SIGHUP, nullptr, &inherited);
  (void)sigemptyset(&set_);
  (void)sigaddset(&set_, SIGINT);
  (void)sigaddset(&set_, SIGTERM);
  if (has_tls || inherited.sa_handler != SIG_IGN) (void)sigaddset(&set_, SIGHUP);
  if (has_tls) (void)std::signal(SIGHUP, SIG_DFL);  // sigwait may never see an ignored signal
  (void)pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

void Signals::Wait(const std::function<void()>& reload) const {
  int signal = 0;
  while (sigwait(&set_, &signal) == 0 && has_tls_ && signal == SIGHUP) reload();
}

void Signals::EndAtNext() const {
  struct sigaction action {};
  action.sa_handler = [](int) { _exit(1); };
  (void)sigaction(SIGINT, &action, nullptr);
  (void)sigaction(SIGTERM, &action, nullptr);
  if (has_tls_) action.sa_handler = SIG_IGN;
  if (sigismember(&set_, SIGHUP) == 1) (void)sigaction(SIGHUP, &action, nullptr);
  (void)pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

}  // namespace kvcache::app
