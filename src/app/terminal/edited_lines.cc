#include "app/terminal/edited_lines.h"

#ifdef KVCACHE_HAVE_LIBEDIT

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "app/terminal/input_bytes.h"
#include "app/terminal/paste_mode.h"
#include "app/terminal/terminal.h"
#include "app/terminal/terminal_keys.h"
#include "app/terminal/wide_text.h"
#include "base/utf8.h"

namespace kvcache::app {
namespace {

constexpr char kCtrlY = 0x19;
constexpr char kCtrlZ = 0x1a;
constexpr char kCtrlBackslash = 0x1c;
// Bound to OnEvent. libedit has no key for a paste or for a resumed process.
constexpr wchar_t kEvent[] = L"\u0080";

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
    // libedit keeps these two strings; el_set would allocate copies that nothing frees.
    (void)el_wset(edit_, EL_ADDFN, L"kvcache-event", L"Pastes, or draws again",
                  &EditedLines::OnEvent);
    (void)el_wset(edit_, EL_BIND, kEvent, L"kvcache-event", nullptr);
    (void)el_wset(edit_, EL_BIND, L"-a", kEvent, L"kvcache-event", nullptr);
    // Ctrl-C and the like are bytes: one in a paste is text.
    (void)el_set(edit_, EL_SETTY, "-d", "-isig", "-ixon", "-iexten", nullptr);
    // While an answer is written: as in between_lines_.
    (void)el_set(edit_, EL_SETTY, "-x", "-icanon", "-echo", "-iexten", nullptr);
  }
  ~EditedLines() override {
    history_end(history_);
    el_end(edit_);
  }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  LineEnd Read(const std::string& prompt, TypedLine& line) override {
    prompt_ = prompt;
    ended_ = LineEnd::kLine;
    line = {};
    ForgetPaste();
    int count = 0;
    // Set before the prompt is shown, so that the kernel never edits text that is typed at once.
    (void)el_set(edit_, EL_PREP_TERM, 1);
    const PasteMode paste_mode;
    const wchar_t* typed = el_wgets(edit_, &count);
    if (ended_ == LineEnd::kInterrupted) {
      (void)el_set(edit_, EL_UNBUFFERED, 0);
      return ended_;
    }
    if (typed == nullptr || count <= 0) return LineEnd::kEndOfInput;
    line.text = FromWide({typed, static_cast<std::size_t>(count)});
    if (line.text.ends_with('\n')) line.text.pop_back();
    line.has_paste = has_paste_;
    if (line.text.starts_with(head_)) line.typed_head = head_.size();
    if (line.text.ends_with(tail_)) line.typed_tail = tail_.size();
    return LineEnd::kLine;
  }

  void Remember(const std::string& line) override {
    // The history holds C strings in the locale's characters.
    const bool fits = line.find('\0') == std::string::npos &&
                      std::mbstowcs(nullptr, line.c_str(), 0) != static_cast<std::size_t>(-1);
    HistEvent event;
    if (!line.empty() && fits) (void)history(history_, &event, H_ENTER, line.c_str());
  }

  void DropTypedAhead() override {
    input_.Drop();
    held_.reset();
  }

 private:
  static EditedLines* Of(EditLine* edit) {
    void* data = nullptr;
    (void)el_get(edit, EL_CLIENTDATA, &data);
    return static_cast<EditedLines*>(data);
  }

  static char* Prompt(EditLine* edit) { return Of(edit)->prompt_.data(); }

  // Returns 1: a character; 0: the end of input; -1: none, which ends the line.
  static int GetCharacter(EditLine* edit, wchar_t* character) {
    return Of(edit)->NextCharacter(character);
  }

  static unsigned char OnEvent(EditLine* edit, int /*key*/) { return Of(edit)->TakeEvent(); }

  Key NextKey() {
    if (held_) return *std::exchange(held_, std::nullopt);
    return keys_.Next();
  }

  int NextCharacter(wchar_t* character) {
    // The event did not reach OnEvent, because libedit waited for the rest of a command.
    if (resumed_ || !pasted_.empty()) return Event(character);
    const Key key = NextKey();
    if (key.kind == Key::Kind::kInterrupted) ended_ = LineEnd::kInterrupted;
    if (key.kind == Key::Kind::kInterrupted) return -1;
    if (key.kind == Key::Kind::kEnd) return 0;
    if (key.kind == Key::Kind::kPaste) {
      pasted_ = ToWide(key.pasted);
      return pasted_.empty() ? NextCharacter(character) : Event(character);
    }
    if (key.byte == kCtrlZ || key.byte == kCtrlBackslash) {
      SignalGroup(key.byte == kCtrlZ ? SIGTSTP : SIGQUIT);
      resumed_ = true;
      return Event(character);
    }
    NoteOrigin(key);
    *character = Character(key.byte);
    return 1;
  }

  static int Event(wchar_t* character) {
    *character = kEvent[0];
    return 1;
  }

  // Returns the character whose first byte is `first`, after reading its other bytes. A byte that
  // does not continue it is kept for the next character.
  wchar_t Character(char first) {
    std::string bytes(1, first);
    while (CharacterLength(bytes) == 0) {
      Key key = NextKey();
      const bool is_byte = key.kind == Key::Kind::kByte;
      if (is_byte && CharacterLength(bytes + key.byte) >= 0) {
        bytes += key.byte;
        continue;
      }
      held_ = std::move(key);
      break;
    }
    if (has_paste_ && bytes != "\r" && bytes != "\n") tail_ += bytes;
    const std::wstring wide = ToWide(bytes);
    const bool is_c1 = wide[0] >= 0x80 && wide[0] < 0xa0;  // kEvent among them
    return is_c1 ? L'\ufffd' : wide[0];
  }

  // Ctrl-Y may insert pasted text again. An empty line has no pasted text.
  void NoteOrigin(const Key& key) {
    const LineInfoW* now = el_wline(edit_);
    if (now->lastchar == now->buffer) ForgetPaste();
    if (key.in_burst || (key.byte == kCtrlY && ever_pasted_)) NotePaste();
    const auto byte = static_cast<unsigned char>(key.byte);
    // After a key that moves or deletes, the typed tail is not known.
    const bool ends_line = key.byte == '\r' || key.byte == '\n';
    if ((byte < 0x20 && byte != '\t' && !ends_line) || byte == 0x7f) tail_.clear();
  }

  void NotePaste() {
    const LineInfoW* now = el_wline(edit_);
    if (!has_paste_) {
      head_ = FromWide({now->buffer, static_cast<std::size_t>(now->cursor - now->buffer)});
    }
    has_paste_ = true;
    ever_pasted_ = true;
  }

  void ForgetPaste() {
    has_paste_ = false;
    head_.clear();
    tail_.clear();
  }

  // Inserts a paste at the cursor, with its newlines.
  unsigned char TakeEvent() {
    if (std::exchange(resumed_, false)) return CC_REDISPLAY;
    const LineInfoW* now = el_wline(edit_);
    if (now->lastchar == now->buffer) ForgetPaste();
    NotePaste();
    tail_.clear();
    const int failed = el_winsertstr(edit_, pasted_.c_str());
    pasted_.clear();
    return failed == 0 ? CC_REFRESH : CC_ERROR;
  }

  KeyMode between_lines_{ControlKeys::kSignals};  // first: libedit begins and ends with these modes
  EditLine* edit_;
  History* history_;
  InputBytes input_{STDIN_FILENO};
  TerminalKeys keys_{input_};
  std::optional<Key> held_;  // read, but not used yet
  std::string prompt_;
  std::wstring pasted_;   // for TakeEvent
  bool resumed_ = false;  // for TakeEvent
  LineEnd ended_ = LineEnd::kLine;
  // The pasted part of the line, as in TypedLine.
  bool has_paste_ = false;
  bool ever_pasted_ = false;
  std::string head_;
  std::string tail_;
};

// libedit reads characters of the locale, while this program reads UTF-8 in every environment.
bool HasUtf8() {
  if (std::setlocale(LC_CTYPE, "") != nullptr && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0) {
    return true;
  }
  return std::setlocale(LC_CTYPE, "C.UTF-8") != nullptr;
}

}  // namespace

std::unique_ptr<LineEditor> MakeEditedLines() {
  if (!StderrIsTerminal() || !HasUtf8()) return nullptr;
  return std::make_unique<EditedLines>();
}

}  // namespace kvcache::app

#else

namespace kvcache::app {

std::unique_ptr<LineEditor> MakeEditedLines() {
  return nullptr;
}

}  // namespace kvcache::app

#endif
