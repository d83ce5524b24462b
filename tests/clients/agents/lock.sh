#!/usr/bin/env bash
# Regenerates package-lock.json from package.json, without the platforms that no test uses and without
# addresses.
set -euo pipefail
cd "$(dirname "$0")"
rm -rf package-lock.json node_modules
npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund
node - <<'JS'
const fs = require('fs');
const lock = JSON.parse(fs.readFileSync('package-lock.json', 'utf8'));
const isUsed = (name) => !/darwin|freebsd|win32|windows|arm|musl|baseline|ppc64|riscv64|s390x|wasm/.test(name);
for (const [path, entry] of Object.entries(lock.packages)) {
  if (!isUsed(path)) delete lock.packages[path];
  delete entry.funding;
  for (const name of Object.keys(entry.optionalDependencies ?? {})) {
    if (!isUsed(name)) delete entry.optionalDependencies[name];
  }
}
fs.writeFileSync('package-lock.json', JSON.stringify(lock, null, 2) + '\n');
JS
