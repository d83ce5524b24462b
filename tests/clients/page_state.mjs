// States of a server for the tests of the page: one in which all parts are filled, and its pieces.

export const node = (id, begin, end, text, more = {}) => ({
  id, parent: 0, begin, end, state: true, parts: [{end, state: true}], requests: 0, pinned: false, whole: true, text, ...more,
});

export const ended = (id, more = {}) => ({
  id, time_ms: Date.UTC(2026, 0, 5, 12, 0, id), route: 'POST /v1/chat/completions', model: 'story', user: '', state: 'done',
  prompt_tokens: 100, cached_tokens: 40, tiers: {live: 30, memory: 0, disk: 10, remote: 0},
  missed: [{tokens: 60, reason: 'new'}], differs_at: '', difference: null, parked: 0, generated_tokens: 20,
  first_token_ms: 12.3, total_ms: 456.7, status: 200, end: 'eos', error: '', ...more,
});

const nothing = {prompt_tokens: null, cached_tokens: null, missed: [], generated_tokens: 0, first_token_ms: null, end: null};

export const failed = (id, error) => ended(id, {...nothing, state: 'failed', status: 400, error});

export const empty = {
  model: 'story', models: ['story'], time_ms: 0, seconds: 0, context: 512, max_sequences: 4, nodes: [], all_nodes: true,
  sequences: [], running: [], ended: [],
};

const totals = {
  requests: 9, running: 3, waiting: 1, parked: 2, generated_tokens: 900, reused_tokens: 400, computed_tokens: 600,
  prefix_tokens: 9210, prefix_states: 12, evicted_tokens: 53, held_bytes: 3e9, free_cells: 100,
};

export const filled = (round = 0) => ({
  ...empty,
  models: ['story', 'another model'],
  context: 32768,
  nodes: [
    node(1, 0, 1412, '<s> You are careful.\n\n# Tools …', {pinned: true, whole: false,
      parts: [{end: 1380, state: true}, {end: 1412, state: false}]}),
    node(2, 1412, 9210, ' Fix the test.\n\tif (n)  ', {parent: 1, requests: 1, whole: false,
      parts: [1450, 2300, 9210].map((end) => ({end, state: true}))}),
    node(3, 1412, 1466, 'Write a title.', {parent: 1}),
    node(4, 0, 9, '<s> Tell me a story about a', {parts: [{end: 9, state: false}], state: false}),
    node(5, 9, 212, ' dog.', {parent: 4, requests: 2, pinned: true}),
    node(6, 9, 128, ' cat.', {parent: 4}),
  ],
  sequences: [
    {request: 9, sequence: 0, state: 'generating', prompt_tokens: 9000, cached_tokens: 8100, generated_tokens: 210, cells: 9210},
    {request: 10, sequence: 1, state: 'prompt', prompt_tokens: 4000, cached_tokens: 1000, generated_tokens: 0, cells: 2500},
    {request: 11, sequence: null, state: 'parked', prompt_tokens: 300, cached_tokens: 0, generated_tokens: 40, cells: 340},
  ],
  running: [
    ended(20, {state: 'generating', end: null}), ended(21, {state: 'prompt', end: null, first_token_ms: null, generated_tokens: 0}),
    ended(22, {...nothing, state: 'queued', status: 0}),
  ],
  ended: [
    ended(1, {user: 'alice', parked: 1}),
    failed(2, 'the prompt has 40,213 tokens; the context has 32,768 with the answer'),
    ended(3, {state: 'cancelled', end: null}),
    ended(4, {missed: [{tokens: 5, reason: 'no state'}, {tokens: 55, reason: 'differs'}], differs_at: '  It is 11:30 now.',
      difference: {token: 45, before: '  It is 11:', prompt: '30', after: ' now.', cached: '29'}}),
  ],
  totals: {...totals, generated_tokens: 900 + 90 * round, reused_tokens: 400 + 30 * round, computed_tokens: 600 + 50 * round},
  memory: [
    {tier: 'live', model: 'story', held_bytes: 3e9, budget_bytes: 4e9, evicted_tokens: 53},
    {tier: 'live', model: 'another model', held_bytes: 4e6, budget_bytes: 0, evicted_tokens: 0},
    {tier: 'memory', held_bytes: 1e9, budget_bytes: 2e9, evicted_objects: 1},
    {tier: 'disk', held_bytes: 1e9, budget_bytes: 2e9, evicted_objects: 1},
    {tier: 'remote', held_bytes: 1e9, budget_bytes: 2e9, evicted_objects: 1},
  ],
  tier_bytes: {live: 3e9, memory: 1e9, disk: 1e9, remote: 1e9},
});
