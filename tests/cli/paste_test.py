"""Tests pastes on a terminal: they are text, never commands, and the terminal's modes are restored.

usage: paste_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import os
import re
import signal
import termios
import time

import program
from terminal import TerminalTest

ON, OFF = "\x1b[?2004h", "\x1b[?2004l"


def pasted(text):
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


def in_each_editor(test):
    """Calls `test` with a chat in each editor, and ends the chat afterwards."""
    def run(self):
        for editor in ("libedit", "simple"):
            with self.subTest(editor=editor):
                log = None if editor == "libedit" else str(self.dir / "stderr.txt")
                self.open(self.chat, stderr=log)
                test(self)
                self.prompt()
                self.type("\x04")
                self.assertEqual(self.ends(), 0)
                self.assertLess(self.all.rindex(ON), self.all.rindex(OFF))
    return run


class Pasted(TerminalTest):
    """Standard error is a file in the tests of the simple editor; the program uses libedit only if
    it is a terminal."""

    def prompt(self):
        self.expect(re.escape(ON) + "(?!.*" + re.escape(OFF) + ")")

    def answered(self):
        """Waits for the end of an answer, during which paste mode is on again."""
        self.expect(re.escape(OFF))
        self.expect(re.escape(ON) + "[\\s\\S]*?" + re.escape(OFF))

    def contents(self):
        """Returns the user's messages, which a typed command saves."""
        path = self.dir / "saved.json"
        path.unlink(missing_ok=True)
        self.prompt()
        self.type(f"/save {path}\n")
        self.expect(re.escape(OFF))
        self.prompt()
        self.type("\n")
        self.expect(re.escape(OFF))
        return [m["content"] for m in json.loads(path.read_text())["messages"]
                if m["role"] == "user"]

    @in_each_editor
    def test_a_paste_is_one_message(self):
        victim = self.dir / "victim.json"
        texts = [f"/save {victim}", f"first\n/save {victim}\n/quit\nlast",
                 '"""quoted"""', '"""', "ends with \\", "//comment", "\t# grüße €😀\n\n- b"]
        for text in texts:
            self.prompt()
            self.type(pasted(text))
            self.type("\r")
            self.answered()
        self.assertEqual(self.contents(), texts)
        self.assertFalse(victim.exists())

    @in_each_editor
    def test_typed_text_around_a_paste(self):
        talk = self.dir / "talk.json"
        talk.write_text('[{"role": "user", "content": "loaded"}]')
        self.prompt()
        self.type("/load ")
        self.type(pasted(f"{talk}\n"))  # a copied line
        self.type("\r")
        self.expect(re.escape(OFF))
        for before, paste, after in (("see ", "/quit\n", " there"), ("//", "quit", ""),
                                     ('"""', 'a"""\nb', '"""'), ("/qu", "it", "")):
            self.prompt()
            self.type(before)
            self.type(pasted(paste))
            self.type(after + "\r")
            self.answered()
        self.prompt()
        self.type(pasted("goes") + "\\\r")
        self.prompt()
        self.type("on\r")
        self.answered()
        self.assertEqual(self.contents(), ["loaded", "see /quit\n there", "/quit",
                                           'a"""\nb', "/quit", "goes\non"])

    @in_each_editor
    def test_control_characters_in_a_paste(self):
        text = "a\x1b]0;owned\x07\x9b31m\x03\x04\x15\x1a\x13\x16\x08\x7fz"
        self.prompt()
        self.type(pasted(text))
        self.type("\r")
        self.answered()
        self.assertEqual(self.contents(), [text])
        self.assertNotRegex(self.all, "\x1b]0;|\x9b|\x03|\x15|\x1a")

    @in_each_editor
    def test_an_end_mark_in_a_paste(self):
        """Text that follows the mark at once may belong to the paste, so it is not a command."""
        victim = self.dir / "victim.json"
        self.prompt()
        self.type(pasted(f"a\x1b[201~\n/save {victim}\n/quit\nb"))
        for _ in range(3):
            self.answered()
        self.type("\r")
        self.answered()
        self.assertEqual(self.contents(), ["a", f"/save {victim}", "/quit", "b"])
        self.assertFalse(victim.exists())

    @in_each_editor
    def test_a_paste_without_its_end(self):
        self.prompt()
        self.type("\x1b[200~never ends\r/quit\r")
        self.type("\x03")
        self.expect(re.escape(OFF))
        self.prompt()
        self.type("typed\n")
        self.answered()
        self.assertEqual(self.contents(), ["typed"])

    @in_each_editor
    def test_a_large_paste(self):
        line = "word " * 20 + "\n"
        self.prompt()
        self.type(pasted(line * 20_000))
        self.type("\r")
        self.expect(re.escape(OFF))  # refused before an answer begins
        self.assertEqual(self.contents(), [])  # more than the context holds

    def test_a_paste_during_an_answer(self):
        """A paste of any length is kept. The kernel's line editing would drop bytes after 4,095."""
        talk = self.dir / "long.json"
        talk.write_text(json.dumps([{"role": "user", "content": "word " * 1000}]))
        victim, saved = self.dir / "victim.json", self.dir / "saved.json"
        log = str(self.dir / "stderr.txt")
        for editor in ("libedit", "simple"):
            for middle in ("", "middle " * 1000):
                with self.subTest(editor=editor, bytes=len(middle)):
                    text = f"/save {victim}\n{middle}/quit\n"
                    self.open(self.chat, "--ctx", "100000", "--prefill-chunk", "1",
                              stderr=None if editor == "libedit" else log)
                    self.prompt()
                    self.type(f"/load {talk}\n")
                    self.prompt()
                    self.type("/retry\n")
                    self.expect(re.escape(OFF))
                    self.expect(re.escape(ON))
                    self.assertFalse(termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO))
                    self.assertTrue(termios.tcgetattr(self.fd)[3] & termios.ISIG)
                    time.sleep(0.3)  # so that the answer has begun
                    self.type(pasted(text))
                    self.expect(re.escape(OFF))
                    self.prompt()
                    self.type("\r")
                    self.answered()
                    self.prompt()
                    self.type(f"/save {saved}\n")
                    self.expect(re.escape(OFF))
                    self.prompt()
                    self.type("\x04")
                    self.assertEqual(self.ends(), 0)
                    self.assertFalse(victim.exists())
                    messages = json.loads(saved.read_text())["messages"]
                    self.assertEqual([m["content"] for m in messages if m["role"] == "user"][1:],
                                     [text])

    def test_history_brings_text_back(self):
        victim = self.dir / "victim.json"
        texts = [f"/save {victim}\n/quit", "two\nlines", '"""', "ends \\", "//x"]
        self.open(self.chat)
        for text in texts:
            self.prompt()
            self.type(pasted(text))
            self.type("\r")
            self.answered()
            self.prompt()
            self.type("\x1b[A")
            self.type("\r")
            self.answered()
        self.assertEqual(self.contents(), [text for text in texts for _ in "ab"])
        self.assertFalse(victim.exists())
        self.prompt()
        self.type("\x04")
        self.assertEqual(self.ends(), 0)

    @in_each_editor
    def test_a_dropped_paste_leaves_commands(self):
        self.prompt()
        self.type(pasted("oh no"))
        self.expect("oh no")
        self.type("\x15")  # Ctrl-U empties the line
        self.type("/save\r")
        self.expect(re.escape(OFF))
        self.assertEqual(self.contents(), [])

    def test_every_exit_ends_the_mode(self):
        for keys, status in ((["\x04"], 0), (["/bye\n"], 0), (["\x03", "\x03"], 0),
                             ([signal.SIGTERM], -signal.SIGTERM),
                             ([signal.SIGHUP], -signal.SIGHUP), (["\x1c"], -signal.SIGQUIT),
                             ([signal.SIGABRT], -signal.SIGABRT)):
            for log in (None, str(self.dir / "stderr.txt")):
                self.open(self.chat, stderr=log)
                for key in keys:
                    self.prompt()
                    modes = termios.tcgetattr(self.fd)
                    self.assertFalse(modes[3] & termios.ICANON)
                    if isinstance(key, str):
                        self.type(key)
                    else:
                        os.kill(self.pid, key)
                self.assertEqual(self.ends(), status)
                self.assertRegex(self.all, re.escape(OFF) + "[^\x1b]*$", keys)

    def test_a_model_cut_short_ends_the_mode(self):
        path = str(self.dir / "cut.gguf")
        with open(self.chat, "rb") as whole, open(path, "wb") as copy:
            copy.write(whole.read())
        self.open(path)
        self.prompt()
        os.truncate(path, 4096)
        self.type("hello\n")
        self.expect("was cut short while it was in use")
        self.assertEqual(self.ends(), 1)
        self.assertLess(self.all.rindex(ON), self.all.rindex(OFF))

    def is_pending(self, number):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            masks = re.findall(r"(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", status.read())
        return any(int(mask, 16) >> number - 1 & 1 for mask in masks)

    def test_the_second_interrupt_of_an_answer_ends_the_mode(self):
        talk = self.dir / "long.json"
        talk.write_text(json.dumps([{"role": "user", "content": "word " * 20000}]))
        self.open(self.chat, "--ctx", "200000", "--prefill-chunk", "4096")
        for _ in range(20):
            self.expect("> ")
            self.type(f"/load {talk}\n")
            self.expect("1 message loaded")
            self.expect("> ")
            self.type("/retry\n")
            self.expect("reading the prompt")
            for _ in "12":
                os.kill(self.pid, signal.SIGINT)
                while self.is_pending(signal.SIGINT):
                    pass
            try:
                self.expect("Ctrl-C again")  # the answer ended before the second Ctrl-C
            except AssertionError:
                break
        self.assertEqual(self.ends(), -signal.SIGINT)
        self.assertRegex(self.all, re.escape(OFF) + "[^\x1b]*$")


if __name__ == "__main__":
    program.main()
