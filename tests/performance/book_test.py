"""Checks that bench/book.py --check accepts docs/performance.md with its results, and detects
changed or invalid results."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"


def check(page):
    done = subprocess.run([sys.executable, ROOT / "bench/book.py", "--check", "--page", page],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class BookTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.page = pathlib.Path(self.folder.name) / "performance.md"
        shutil.copy(PAGE, self.page)
        self.results = self.page.with_suffix("")
        shutil.copytree(PAGE.with_suffix(""), self.results)

    def change(self, name, change):
        path = self.results / name
        result = json.loads(path.read_text())
        change(result)
        path.write_text(json.dumps(result))

    def test_the_committed_page_matches_its_results(self):
        self.assertEqual(check(PAGE), (0, ""))
        self.assertTrue(list(PAGE.with_suffix("").glob("*.svg")))

    def test_a_changed_result_changes_charts_and_tables(self):
        def faster(result):
            for case in result["cases"]:
                for key in {"rate", "share", "plain_share"} & case.keys():
                    case[key] *= 1.1

        self.change("attention.json", faster)
        status, output = check(self.page)
        self.assertEqual(status, 1)
        self.assertIn("attention_decode.svg: differs", output)
        self.assertIn("performance.md: differs", output)

    def test_a_share_that_is_not_rate_over_limit_is_refused(self):
        for share in ("share", "plain_share"):
            with self.subTest(share):
                def wrong(result):
                    next(c for c in result["cases"] if share in c)[share] += 0.1

                self.change("attention.json", wrong)
                status, output = check(self.page)
                self.assertEqual(status, 1)
                self.assertIn(f": {share} ", output)
                shutil.copy(PAGE.with_suffix("") / "attention.json", self.results)

    def test_decoding_without_the_plain_loop_is_refused(self):
        for name in ("attention", "targets", "decode"):
            with self.subTest(name):
                def forget(result):
                    next(c for c in result["cases"] if c["kind"] == "decode").pop("plain_limit")

                self.change(f"{name}.json", forget)
                status, output = check(self.page)
                self.assertEqual(status, 1)
                self.assertIn(f"{name}.json", output)
                self.assertIn("plain_limit", output)
                shutil.copy(PAGE.with_suffix("") / f"{name}.json", self.results)

    def test_a_file_of_another_format_is_refused(self):
        self.change("attention.json", lambda result: result.pop("format"))
        status, output = check(self.page)
        self.assertEqual(status, 1)
        self.assertIn("format", output)


if __name__ == "__main__":
    unittest.main()
