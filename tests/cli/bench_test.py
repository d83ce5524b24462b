"""Tests kvcache bench reuse: traces of requests, budgets, reports.

usage: bench_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import lzma

import program
from program import CliTest


class Bench(CliTest):
    """bench reuse, on a trace of conversations that take turns."""

    KEYS = {"requests", "prompt_tokens", "reused_tokens", "computed_tokens",
            "unlimited_reused_tokens", "max_recomputed_tokens", "evicted_tokens", "peak_tokens", "peak_bytes", "missed",
            "ttft_ms", "baselines"}

    def trace(self, name="trace.jsonl", block=16, pack=bytes):
        lines, known, last = [], {}, {}
        for i in range(60):
            talk = i * i % 7
            before = last.get(talk, [])
            blocks = before if len(before) < 5 else []  # else a new conversation
            blocks = blocks + [len(known) + k for k in range(1 + i % 2)]
            known.update(dict.fromkeys(blocks))
            last[talk] = blocks
            lines.append(json.dumps({"timestamp": i * 100, "input_length": block * len(blocks),
                                     "output_length": 5, "hash_ids": blocks}))
        return self.file(name, pack(("\n".join(lines) + "\n").encode()))

    def reuse(self, trace, *flags):
        out = self.succeeds("bench", "reuse", "--trace", trace, "--block-size", "16", "--json",
                            *flags)
        self.assertEqual(out.count("\n"), 1)
        report = json.loads(out)
        self.assertEqual(set(report), self.KEYS)
        self.assertEqual(set(report["ttft_ms"]), {"p50", "p99"})
        self.assertEqual(report["requests"], 60)
        missed = sum(miss["tokens"] for miss in report["missed"])
        self.assertEqual(report["computed_tokens"], missed)
        self.assertEqual(report["reused_tokens"] + missed, report["prompt_tokens"])
        for miss in report["missed"]:
            self.assertEqual(set(miss), {"tokens", "reason"})
        return report

    def test_without_a_model(self):
        report = self.reuse(self.trace())
        self.assertGreater(report["unlimited_reused_tokens"], 1000)
        self.assertGreaterEqual(report["reused_tokens"], 0.98 * report["unlimited_reused_tokens"])
        self.assertEqual((report["evicted_tokens"], report["peak_bytes"]), (0, 0))
        self.assertEqual(report["ttft_ms"], {"p50": None, "p99": None})
        packed = self.reuse(self.trace("trace.xz", pack=lzma.compress))
        self.assertEqual(packed, report)

    def test_quick_needs_no_file(self):
        report = json.loads(self.succeeds("bench", "reuse", "--quick", "--json"))
        self.assertEqual(report["requests"], 500)
        self.assertGreaterEqual(report["reused_tokens"], 0.95 * report["unlimited_reused_tokens"])
        self.fails(["bench", "reuse", "--quick", "--trace", self.trace()], "--trace", status=2)
        self.fails(["bench", "reuse"], "--quick", status=2)

    def test_budgets(self):
        for budget in (90, 200, 400):
            for slots in ("1", "3"):
                report = self.reuse(self.trace(), "--budget-tokens", str(budget), "--slots", slots)
                self.assertLessEqual(report["peak_tokens"], budget)
                self.assertGreater(report["evicted_tokens"], 0)
                self.assertLessEqual(report["baselines"]["least_recently_used"],
                                     report["baselines"]["optimum"])
        report = self.reuse(self.trace(), "--budget-tokens", "40")
        self.assertIn("larger than the budget", [miss["reason"] for miss in report["missed"]])

    def test_with_a_model(self):
        plain = self.reuse(self.trace(), "--budget-tokens", "300")
        report = self.reuse(self.trace(), "--budget-tokens", "300", "--model", self.model)
        self.assertGreater(report["ttft_ms"]["p99"], 0)
        self.assertGreater(report["peak_bytes"], 0)
        self.assertEqual(report["reused_tokens"], plain["reused_tokens"])
        small = self.reuse(self.trace(), "--budget", "150000", "--model", self.model)
        self.assertLessEqual(small["peak_bytes"], 150000)
        self.fails(["bench", "reuse", "--trace", self.trace(), "--block-size", "16", "--budget", "9",
                    "--model", self.model], "--budget is 9 bytes")
        self.fails(["bench", "reuse", "--trace", self.trace(), "--block-size", "16", "--model",
                    "nonesuch"], "nonesuch", "kvcache list")

    def test_text(self):
        out = self.succeeds("bench", "reuse", "--trace", self.trace(), "--block-size", "16",
                            "--budget-tokens", "200")
        for word in ("60 requests", "budget 200 tokens", "least recently used", "optimum",
                     "unlimited", "evicted"):
            self.assertIn(word, out)

    def test_bad_traces(self):
        def fails(data, *words):
            path = self.file("bad.jsonl", data)
            self.fails(["bench", "reuse", "--trace", path], *words)
        fails(b"", "bad.jsonl", "no requests")
        fails(b"{}\n", "bad.jsonl:1", "timestamp")
        fails(b'{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n',
              "bad.jsonl:1", "1 ids", "600", "needs 2")
        fails(lzma.compress(b"x" * 99)[:-9], "bad.jsonl", "damaged")
        self.fails(["bench", "reuse", "--trace", str(self.dir / "none")], "none", "No such file")


if __name__ == "__main__":
    program.main()
