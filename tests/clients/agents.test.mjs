// Coding agents hold a session with a scripted model: it calls the agent's tool, and answers with what
// that gave.
import assert from 'node:assert/strict';
import {execFile} from 'node:child_process';
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {after, before, test} from 'node:test';
import {promisify} from 'node:util';

import {startScripted} from './server.mjs';

const packages = new URL('agents/node_modules/', import.meta.url).pathname;
// Install scripts are not run, so the second is where its package has it.
const programs = {codex: '.bin/codex', opencode: 'opencode-linux-x64/bin/opencode'};
const context = 131072;
const command = 'echo an agent was here >> made.txt';

let home, work;
before(() => {
  home = mkdtempSync(join(tmpdir(), 'kvcache-agents-'));
  work = mkdtempSync(join(tmpdir(), 'kvcache-work-'));
});
after(() => {
  for (const folder of [home, work]) rmSync(folder, {recursive: true, force: true});
});

// Runs an agent in `work`, with nothing of this user's. Returns what it writes.
async function run(program, args) {
  const env = {PATH: process.env.PATH, HOME: home, OPENCODE_DISABLE_MODELS_FETCH: '1',
               OPENCODE_DISABLE_AUTOUPDATE: '1'};
  const child = promisify(execFile)(join(packages, programs[program]), args, {cwd: work, env, timeout: 100000});
  child.child.stdin.end();
  const {stdout, stderr} = await child;
  return stdout + stderr;
}

// Returns the sums of counters by their names and labels.
async function metrics(url) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Object.fromEntries(text.split('\n').filter((line) => line && !line.startsWith('#'))
      .map((line) => line.split(' ')).map(([name, value]) => [name, Number(value)]));
}

const made = () => readFileSync(join(work, 'made.txt'), 'utf8');

test('codex', async () => {
  const server = await startScripted('exec_command', {cmd: command}, context);
  try {
    writeFileSync(join(work, 'made.txt'), '');
    const provider = `{name="kvcache", base_url="${server.url}/v1"}`;
    const flags = ['-c', 'model_provider=kvcache', '-c', `model_providers.kvcache=${provider}`, '-m', 'scripted',
                   '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'];
    const first = await run('codex', ['exec', ...flags, 'Make a file.']);
    assert.match(first, /The sun shines\./);
    assert.equal(made(), 'an agent was here\n');
    const before = await metrics(server.url);
    const again = await run('codex', ['exec', 'resume', '--last', ...flags, 'Once more.']);
    assert.match(again, /The sun shines\./);
    assert.equal(made(), 'an agent was here\n'.repeat(2));
    const now = await metrics(server.url);
    const reused = now['kvcache_prompt_tokens_reused_total{tier="live"}'] -
        before['kvcache_prompt_tokens_reused_total{tier="live"}'];
    const computed = now.kvcache_prompt_tokens_computed_total - before.kvcache_prompt_tokens_computed_total;
    assert.ok(reused > 9 * computed, `${reused} tokens reused, ${computed} computed`);
  } finally {
    await server.stop();
  }
});

test('opencode', async () => {
  const server = await startScripted('bash', {command, description: 'Makes a file'}, context);
  try {
    writeFileSync(join(work, 'made.txt'), '');
    const provider = {npm: '@ai-sdk/openai-compatible', name: 'kvcache', options: {baseURL: `${server.url}/v1`},
                      models: {scripted: {name: 'scripted', tool_call: true, limit: {context, output: 4096}}}};
    writeFileSync(join(work, 'opencode.json'),
        JSON.stringify({provider: {kvcache: provider}, permission: {bash: 'allow'}, share: 'disabled'}));
    const first = await run('opencode', ['run', '-m', 'kvcache/scripted', 'Make a file.']);
    assert.match(first, /The sun shines\./);
    assert.equal(made(), 'an agent was here\n');
    const before = await metrics(server.url);
    await run('opencode', ['run', '--continue', '-m', 'kvcache/scripted', 'Once more.']);
    assert.equal(made(), 'an agent was here\n'.repeat(2));
    const now = await metrics(server.url);
    assert.ok(now['kvcache_prompt_tokens_reused_total{tier="live"}'] >
        before['kvcache_prompt_tokens_reused_total{tier="live"}'] + 10000);
  } finally {
    await server.stop();
  }
});
