#!/usr/bin/env bash
# Regenerates package-lock.json from package.json.
#
# node-llama-cpp lists every platform and GPU that it is built for as an optional dependency. No test
# uses that half a gigabyte, and npm before version 10 has no option to omit packages by name.
# Therefore the lock file omits them; package.json depends on the one platform that is used.
set -euo pipefail
cd "$(dirname "$0")"
rm -rf package-lock.json node_modules
npm install --package-lock-only --ignore-scripts --no-audit --no-fund
node - <<'JS'
const fs = require('fs');
const lock = JSON.parse(fs.readFileSync('package-lock.json', 'utf8'));
const kept = Object.keys(JSON.parse(fs.readFileSync('package.json', 'utf8')).dependencies);
delete lock.packages['node_modules/node-llama-cpp'].optionalDependencies;
for (const [path, entry] of Object.entries(lock.packages)) {
  const name = path.replace('node_modules/', '');
  if (name.startsWith('@node-llama-cpp/') && !kept.includes(name)) delete lock.packages[path];
  delete entry.funding;
}
fs.writeFileSync('package-lock.json', JSON.stringify(lock, null, 2) + '\n');
JS
