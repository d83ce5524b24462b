#!/usr/bin/env bash
# Tests and measures the matrix tiles of AMX on a machine that has them; writes build/amx. About half an hour on a quiet
# machine, and 7 GB of disk for the models of the comparison with llama.cpp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
./dev setup build serve bench oracle
out=build/amx
mkdir -p "$out"
cmake --preset release -DKVCACHE_BUILD_BENCH=ON -DKVCACHE_BUILD_TESTS=ON > "$out/configure.log"
cmake --build build/release -j "$(nproc)" --target kvcache_cli kvcache_make_model model_bench linear_bench attention_bench tile_bench \
  backend_tests tiles_checks >&2

build/release/kvcache inspect --machine | tee "$out/machine.txt"
grep -q "kernels run with AMX" "$out/machine.txt" || { echo "amx.sh: the target AMX is not offered here" >&2; exit 1; }

build/release/tests/tiles_checks
build/release/tests/backend_tests --gtest_filter='*Linear*:TilesTest*:KeyTilesTest*:*Attention*:CpuTarget*'
/usr/bin/python3 tests/exactness/logit_hashes.py --make-model build/release/tools/make_model/kvcache-make-model \
  --kvcache build/release/kvcache --work "$out/hashes"

build/release/bench/tile_bench --json="$out/tiles.json"
for threads in 1 "$(nproc)"; do
  for target in AMX AVX3_DL; do
    build/release/bench/linear_bench --target="$target" --threads="$threads" --json="$out/linear-$target-$threads.json"
    build/release/bench/attention_bench --target="$target" --threads="$threads" --filter='^prefill .*(q8_0|q4_0)' \
      --json="$out/attention-$target-$threads.json"
  done
done
bench/peer/run.sh --phases models history turns report --types q8_0 q4_k_m --rounds 3 | tee "$out/peer.txt"
