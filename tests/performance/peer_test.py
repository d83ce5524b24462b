"""Checks the selection of cases that ggml is timed on, and the figures that are added to them."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/peer"), str(ROOT / "bench")]

import attention_peer

DECODE = {"kind": "decode", "history": 4096, "queries": 1, "batch": 1, "heads": 32, "kv_heads": 8,
          "head_dim": 128, "type": "q8_0", "k_type": "q8_0", "v_type": "q8_0", "window": 0}


class PeerTest(unittest.TestCase):
    def test_only_equal_work_is_compared(self):
        self.assertTrue(attention_peer.comparable(DECODE))
        for change in ({"v_type": "f16", "type": "q8_0-f16"}, {"window": 4096}, {"batch": 16},
                       {"head_dim": 64}, {"queries": 5}, {"type": "q5_0"}, {"heads": 8},
                       {"kind": "prefill"}):
            with self.subTest(change):
                self.assertFalse(attention_peer.comparable({**DECODE, **change}))
        self.assertTrue(attention_peer.comparable({**DECODE, "kind": "prefill", "queries": 512}))

    def test_the_ratio_uses_the_statistic_of_our_rate(self):
        found = {"kind": "decode", "history": 4096, "queries": 1, "batch": 1, "head_dim": 128,
                 "type": "q8_0", "layout": "heads", "build": "haswell", "best_ms": 4.0,
                 "median_ms": 9.0, "p99_ms": 9.5, "runs": 3, "layers": 2, "error": 0.001,
                 "work": 0.036}
        other = {**found, "history": 1024}
        for rate_of, ratio, rate in (("best", 4.0, 9.0), ("median", 3.0, 4.0)):
            case = {**DECODE, "rate_of": rate_of, "best_ms": 1.0, "median_ms": 3.0}
            attention_peer.add_peer([case], [found, other])
            self.assertEqual(list(case["peers"]), ["ggml, heads layout"])
            peer = case["peers"]["ggml, heads layout"]
            self.assertAlmostEqual(peer["ratio"], ratio)
            self.assertAlmostEqual(peer["rate"], rate)


if __name__ == "__main__":
    unittest.main()
