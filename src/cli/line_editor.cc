#include "cli/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>

#include "cli/terminal.h"

#ifdef KVCACHE_HAVE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#endif

namespace kvcache::cli {
namespace {

constexpr int kPollMs = 100;

// A byte of standard input; -1 at its end, -2 after Ctrl-C.
int ReadByte() {
  const std::atomic<bool>& interrupted = CatchInterrupt();
  for (;;) {
    if (interrupted.load()) return -2;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&input, 1, kPollMs);  // a Ctrl-C just before it is seen after it
    if (ready < 0 && errno != EINTR) return -1;
    if (ready <= 0) continue;
    unsigned char byte = 0;
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count == 1) return byte;
    if (count < 0 && errno == EINTR) continue;
    return -1;
  }
}

class PlainLines : public LineEditor {
 public:
  LineEnd Read(const std::string& prompt, std::string& line) override {
    if (StdinIsTerminal()) (void)std::fputs(prompt.c_str(), stderr);
    line.clear();
    for (;;) {
      const int byte = ReadByte();
      if (byte == -2) return LineEnd::kInterrupted;
      if (byte == -1) return line.empty() ? LineEnd::kEndOfInput : LineEnd::kLine;
      if (byte == '\n') return LineEnd::kLine;
      line += static_cast<char>(byte);
    }
  }

  void Remember(const std::string&) override {}
};

#ifdef KVCACHE_HAVE_LIBEDIT

class EditedLines : public LineEditor {
 public:
  EditedLines() : edit_(el_init("kvcache", stdin, stderr, stderr)), history_(history_init()) {
    HistEvent event;
    (void)history(history_, &event, H_SETSIZE, 1000);
    (void)history(history_, &event, H_SETUNIQUE, 1);
    (void)el_set(edit_, EL_CLIENTDATA, this);
    (void)el_set(edit_, EL_PROMPT, &EditedLines::Prompt);
    (void)el_set(edit_, EL_EDITOR, "emacs");
    (void)el_set(edit_, EL_SIGNAL, 0);
    (void)el_set(edit_, EL_HIST, history, history_);
    (void)el_wset(edit_, EL_GETCFN, &EditedLines::GetCharacter);
    (void)el_source(edit_, nullptr);  // the user's ~/.editrc
  }
  ~EditedLines() override {
    history_end(history_);
    el_end(edit_);
  }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  LineEnd Read(const std::string& prompt, std::string& line) override {
    prompt_ = prompt;
    ended_ = LineEnd::kLine;
    line.clear();
    int count = 0;
    // Raw before the prompt is seen: what is typed at once is then never the terminal's to take.
    (void)el_set(edit_, EL_PREP_TERM, 1);
    const char* typed = el_gets(edit_, &count);
    if (ended_ == LineEnd::kInterrupted) {
      (void)el_set(edit_, EL_UNBUFFERED, 0);
      return ended_;
    }
    if (typed == nullptr || count <= 0) return LineEnd::kEndOfInput;
    line.assign(typed, static_cast<std::size_t>(count));
    if (line.ends_with('\n')) line.pop_back();
    return LineEnd::kLine;
  }

  void Remember(const std::string& line) override {
    HistEvent event;
    if (!line.empty()) (void)history(history_, &event, H_ENTER, line.c_str());
  }

 private:
  static EditedLines* Of(EditLine* edit) {
    void* data = nullptr;
    (void)el_get(edit, EL_CLIENTDATA, &data);
    return static_cast<EditedLines*>(data);
  }

  static char* Prompt(EditLine* edit) { return Of(edit)->prompt_.data(); }

  // A character of UTF-8. 1: there is one; 0: the end; -1: none, which ends the line.
  static int GetCharacter(EditLine* edit, wchar_t* character) {
    EditedLines* const self = Of(edit);
    std::mbstate_t state{};
    for (;;) {
      const int byte = ReadByte();
      if (byte == -2) self->ended_ = LineEnd::kInterrupted;
      if (byte < 0) return byte == -2 ? -1 : 0;
      const char one = static_cast<char>(byte);
      const std::size_t used = std::mbrtowc(character, &one, 1, &state);
      if (used == static_cast<std::size_t>(-2)) continue;
      if (used == static_cast<std::size_t>(-1)) *character = L'\uFFFD';
      if (used == 0) *character = L'\0';
      return 1;
    }
  }

  EditLine* edit_;
  History* history_;
  std::string prompt_;
  LineEnd ended_ = LineEnd::kLine;
};

// libedit speaks the locale's characters; ours are UTF-8 whatever the environment says.
bool HasUtf8() {
  if (std::setlocale(LC_CTYPE, "") != nullptr && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0) {
    return true;
  }
  return std::setlocale(LC_CTYPE, "C.UTF-8") != nullptr;
}

#endif

}  // namespace

std::unique_ptr<LineEditor> MakeLineEditor() {
#ifdef KVCACHE_HAVE_LIBEDIT
  if (StdinIsTerminal() && StderrIsTerminal() && HasUtf8()) {
    return std::make_unique<EditedLines>();
  }
#endif
  return std::make_unique<PlainLines>();
}

}  // namespace kvcache::cli
