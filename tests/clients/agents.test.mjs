// Coding agents, unchanged, hold a session with a scripted model: it calls the agent's tool and answers
// with what that gave, and then once more, from a prompt that is warm.
import assert from 'node:assert/strict';
import {execFile} from 'node:child_process';
import {mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {dirname, join} from 'node:path';
import {test} from 'node:test';
import {promisify} from 'node:util';

import {startScripted} from './server.mjs';

const packages = new URL('agents/node_modules/', import.meta.url).pathname;
const context = 131072;
const patience = 150000;
const command = 'echo an agent was here >> made.txt';
const shell = {command, description: 'Makes a file'};
const prompts = ['Make a file.', 'Once more.'];

// Programs of packages whose install scripts would link them are run where the package has them.
const agents = {
  claude: {
    program: '@anthropic-ai/claude-code-linux-x64/claude',
    tool: 'Bash',
    args: shell,
    env: (url) => ({ANTHROPIC_BASE_URL: url, ANTHROPIC_AUTH_TOKEN: 'none', DISABLE_TELEMETRY: '1',
                    DISABLE_ERROR_REPORTING: '1', DISABLE_AUTOUPDATER: '1',
                    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1'}),
    flags: ({model}) => ['--model', model, '--allowedTools', 'Bash'],
    turns: (flags) => [[...flags, '-p', prompts[0]], [...flags, '--continue', '-p', prompts[1]]],
  },
  codex: {
    program: '.bin/codex',
    tool: 'exec_command',
    args: {cmd: command},
    flags: ({url, model}) => [
      '-c', 'model_provider=kvcache', '-c', `model_providers.kvcache={name="kvcache", base_url="${url}/v1"}`,
      '-m', model, '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'],
    turns: (flags) => [['exec', ...flags, prompts[0]], ['exec', 'resume', '--last', ...flags, prompts[1]]],
  },
  opencode: {
    program: 'opencode-linux-x64/bin/opencode',
    tool: 'bash',
    args: shell,
    env: () => ({OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_AUTOUPDATE: '1'}),
    files: ({url, model}) => ({'work/opencode.json': {
      provider: {kvcache: {npm: '@ai-sdk/openai-compatible', name: 'kvcache', options: {baseURL: `${url}/v1`},
                           models: {[model]: {name: model, tool_call: true, limit: {context, output: 4096}}}}},
      permission: {bash: 'allow'}, share: 'disabled'}}),
    flags: ({model}) => ['-m', `kvcache/${model}`],
    turns: (flags) => [['run', ...flags, prompts[0]], ['run', '--continue', ...flags, prompts[1]]],
  },
  qwen: {
    program: '.bin/qwen',
    tool: 'run_shell_command',
    args: {...shell, is_background: false},
    env: (url) => ({OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: 'none'}),
    files: () => ({'home/.qwen/settings.json': {
      privacy: {usageStatisticsEnabled: false}, telemetry: {enabled: false}, general: {enableAutoUpdate: false}}}),
    flags: ({model}) => ['--auth-type', 'openai', '--model', model, '--yolo'],
    turns: (flags) => [[...flags, '-p', prompts[0]], [...flags, '--continue', '-p', prompts[1]]],
  },
};

// Runs a program with nothing of this user's. What it sends elsewhere than to loopback gets nowhere.
async function run(program, args, folder, env) {
  const nowhere = 'http://127.0.0.1:9';
  const child = promisify(execFile)(program, args, {
    cwd: join(folder, 'work'), timeout: patience, killSignal: 'SIGKILL', maxBuffer: 1 << 26,
    env: {PATH: process.env.PATH, HOME: join(folder, 'home'), HTTP_PROXY: nowhere, HTTPS_PROXY: nowhere,
          NO_PROXY: '127.0.0.1', ...env}});
  child.child.stdin.end();
  const {stdout, stderr} = await child.catch((error) => {
    throw new Error(`${program} ended with ${error.code ?? error.signal}:\n${error.stdout}\n${error.stderr}`);
  });
  return stdout + stderr;
}

// Returns the sums of counters by their names and labels.
async function metrics(url) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Object.fromEntries(text.split('\n').filter((line) => line && !line.startsWith('#'))
      .map((line) => line.split(' ')).map(([name, value]) => [name, Number(value)]));
}

// Returns the share of prompts' tokens that were not computed, since the counters were `before`.
async function shareReused(url, before) {
  const now = await metrics(url);
  const since = (name) => now[name] - (before[name] ?? 0);
  const reused = since('kvcache_prompt_tokens_reused_total{tier="live"}');
  return reused / (reused + since('kvcache_prompt_tokens_computed_total'));
}

async function holdSession({program, tool, args, env = () => ({}), files = () => ({}), flags, turns}, model) {
  const folder = mkdtempSync(join(tmpdir(), 'kvcache-agents-'));
  const server = await startScripted(tool, args, context, model);
  try {
    for (const name of ['home', 'work']) mkdirSync(join(folder, name));
    for (const [name, content] of Object.entries(files({url: server.url, model}))) {
      mkdirSync(dirname(join(folder, name)), {recursive: true});
      writeFileSync(join(folder, name), JSON.stringify(content));
    }
    let before;
    let made = '';
    for (const turn of turns(flags({url: server.url, model}))) {
      before = await metrics(server.url);
      const output = await run(join(packages, program), turn, folder, env(server.url));
      assert.match(output, /The sun shines\./);
      made += 'an agent was here\n';
      assert.equal(readFileSync(join(folder, 'work', 'made.txt'), 'utf8'), made, output);
    }
    const share = await shareReused(server.url, before);
    assert.ok(share >= 0.9, `${share} of the second turn's tokens reused`);
  } finally {
    await server.stop();
    rmSync(folder, {recursive: true, force: true});
  }
}

test('Claude Code', () => holdSession(agents.claude, 'scripted'));
// Codex sends other fields for models that it knows.
for (const model of ['gpt-5.5', 'gpt-5.2-codex', 'scripted']) {
  test(`Codex with ${model}`, () => holdSession(agents.codex, model));
}
test('opencode', () => holdSession(agents.opencode, 'scripted'));
test('Qwen Code', () => holdSession(agents.qwen, 'scripted'));
