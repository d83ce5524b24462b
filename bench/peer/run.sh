#!/usr/bin/env bash
# Builds what the comparison with llama.cpp needs and runs it; peer_bench.py --help says how.
#   bench/peer/run.sh                                everything: about 20 minutes, 7 GB of disk
#   bench/peer/run.sh --phases models history        beforehand, on a busy machine
#   bench/peer/run.sh --phases ours peer report      then the measurement itself
#   bench/peer/run.sh --shape tiny                   a try, in a minute
#   bench/peer/run.sh --kv-types f16 q8_0 --prefill-depths 16384
#                                                    caches of both types; prefill at depth, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
./dev setup build bench oracle
mkdir -p build
cmake --preset release -DKVCACHE_BUILD_BENCH=ON > build/release.configure.log
cmake --build build/release -j "$(nproc)" --target kvcache_cli kvcache_make_model model_bench >&2
exec /usr/bin/python3 bench/peer/peer_bench.py "$@"
