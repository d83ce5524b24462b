#!/usr/bin/env bash
# Builds the programs of the comparison with llama.cpp and runs it (peer_bench.py --help).
#   bench/peer/run.sh                                everything: about 20 minutes, 7 GB of disk
#   bench/peer/run.sh --phases models history        the preparation, also on a busy machine
#   bench/peer/run.sh --phases ours peer report      then the measurement
#   bench/peer/run.sh --shape tiny                   a test run of a minute
#   bench/peer/run.sh --kv-types f16 q8_0 --prefill-depths 16384
#                                                    two cache types, and prefill at a depth
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
./dev setup build serve bench oracle
mkdir -p build
cmake --preset release -DKVCACHE_BUILD_BENCH=ON > build/release.configure.log
cmake --build build/release -j "$(nproc)" --target kvcache_cli kvcache_make_model model_bench >&2
exec /usr/bin/python3 bench/peer/peer_bench.py "$@"
