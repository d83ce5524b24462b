#include "app/terminal/terminal_keys.h"

#include <cstring>

#include "app/terminal/typed_line.h"

namespace kvcache::app {
namespace {

constexpr char kCtrlC = 0x03;
constexpr char kEscapeKey = 0x1b;
constexpr const char* kStartRest = "[200~";
constexpr const char* kEndRest = "[201~";

Key Stopped(int reason) {
  Key key;
  key.kind = reason == InputBytes::kInterrupted ? Key::Kind::kInterrupted : Key::Kind::kEnd;
  return key;
}

}  // namespace

bool TerminalKeys::SkipRest(const char* rest) {
  const std::size_t size = std::strlen(rest);
  for (std::size_t i = 0; i < size; ++i) {
    if (input_.Peek(i) != static_cast<unsigned char>(rest[i])) return false;
  }
  input_.Skip(size);
  return true;
}

Key TerminalKeys::ReadPaste() {
  std::string bytes;
  for (;;) {
    const int next = input_.Next();
    if (next < 0) return Stopped(next);
    const char byte = static_cast<char>(next);
    if (byte == kCtrlC && !input_.Follows(InputBytes::kPauseMs)) {
      return Stopped(InputBytes::kInterrupted);
    }
    if (byte == kEscapeKey && SkipRest(kEndRest)) break;
    bytes += byte;
  }
  input_.AbsorbBurst();
  Key key;
  key.kind = Key::Kind::kPaste;
  key.pasted = PastedText(bytes);
  return key;
}

Key TerminalKeys::Next() {
  for (;;) {
    const bool in_burst = input_.InBurst();
    const int next = input_.Next();
    if (next < 0) return Stopped(next);
    const char byte = static_cast<char>(next);
    if (byte == kCtrlC) return Stopped(InputBytes::kInterrupted);
    if (byte == kEscapeKey && SkipRest(kStartRest)) return ReadPaste();
    if (byte == kEscapeKey && SkipRest(kEndRest)) continue;  // no paste has begun
    Key key;
    key.kind = Key::Kind::kByte;
    key.byte = byte;
    key.in_burst = in_burst;
    return key;
  }
}

}  // namespace kvcache::app
