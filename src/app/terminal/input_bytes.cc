#include "app/terminal/input_bytes.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "app/terminal/terminal.h"

namespace kvcache::app {
namespace {

constexpr int kPollMs = 100;
constexpr std::size_t kBlockBytes = 1 << 16;
constexpr std::size_t kMaxBurstBytes = 1 << 26;

}  // namespace

int InputBytes::Fill(int milliseconds) {
  pollfd input{fd_, POLLIN, 0};
  const int ready = poll(&input, 1, milliseconds);
  if (ready < 0) return errno == EINTR ? 0 : kEnd;
  if (ready == 0) return 0;
  char block[kBlockBytes];
  const ssize_t count = read(fd_, block, sizeof(block));
  if (count < 0 && errno == EINTR) return 0;
  if (count <= 0) return kEnd;
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_.append(block, static_cast<std::size_t>(count));
  return 1;
}

int InputBytes::Peek(std::size_t ahead) {
  for (;;) {
    if (Interrupted()) return kInterrupted;
    if (at_ + ahead < buffer_.size()) return static_cast<unsigned char>(buffer_[at_ + ahead]);
    // Only a wait needs the signal handlers: setting them takes six system calls. A SIGINT that
    // comes just before poll() is seen after it.
    (void)CatchInterrupt();
    if (Fill(kPollMs) == kEnd) return kEnd;
  }
}

int InputBytes::Next() {
  const int byte = Peek();
  if (byte >= 0) Skip(1);
  return byte;
}

bool InputBytes::Follows(int milliseconds) {
  return at_ < buffer_.size() || Fill(milliseconds) == 1;
}

void InputBytes::Skip(std::size_t bytes) {
  at_ += bytes;
  burst_bytes_ -= std::min(burst_bytes_, bytes);
}

void InputBytes::AbsorbBurst() {
  while (buffered().size() < kMaxBurstBytes && Fill(kPauseMs) == 1) {
  }
  burst_bytes_ = buffered().size();
}

void InputBytes::Drop() {
  buffer_.clear();
  at_ = 0;
  burst_bytes_ = 0;
}

}  // namespace kvcache::app
