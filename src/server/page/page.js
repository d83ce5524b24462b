// Shows what /state says, once a second, and chats with the model. Texts are never read as HTML.
'use strict';

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString('en');
let key = sessionStorage.getItem('kvcache-key') || '';

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function request(path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  return fetch(path, {
    method: body === undefined ? 'GET' : 'POST',
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

async function askJson(path, body) {
  const answer = await request(path, body);
  const json = await answer.json();
  if (!answer.ok) throw new Error(json.error?.message || json.error || `status ${answer.status}`);
  return json;
}

// ---- Prefixes

function drawTrie(state) {
  const trie = byId('trie');
  const nodes = state.nodes;
  const focused = document.activeElement?.dataset?.node;
  trie.replaceChildren();
  if (nodes.length === 0) {
    trie.append(element('p', 'empty', 'No prompt was read yet. Ask something below.'));
    return;
  }
  const end = Math.max(...nodes.map((node) => node.end), 1);
  const depths = new Map();
  for (const node of nodes) {
    const depth = node.parent ? (depths.get(node.parent) || 0) + 1 : 1;
    depths.set(node.id, depth);
    const shared = nodes.filter((other) => other.parent === node.id).length;
    const facts = [`tokens ${number(node.begin)} to ${number(node.end)}`];
    if (shared > 1) facts.push(`${shared} prompts go on from here`);
    facts.push(node.state ? 'can be restored' : 'part of a longer one');
    if (node.requests > 0) facts.push(`in use by ${node.requests}`);
    if (node.pinned) facts.push('pinned');
    const row = element('div', 'node');
    row.tabIndex = 0;
    row.dataset.node = node.id;
    row.setAttribute('role', 'treeitem');
    row.setAttribute('aria-level', depth);
    const length = number(node.end - node.begin);
    const shown = node.text.replace(/\s+/g, ' ').trim();
    row.setAttribute('aria-label', `${facts.join(', ')}: ${length} ${shown}`);  // has what is seen
    row.title = `${facts.join(', ')}\n\n${node.text}`;
    const track = element('div', 'track');
    if (node.parent) {
      const from = element('span', 'from');
      from.style.left = `${100 * node.begin / end}%`;
      track.append(from);
    }
    const bar = element('span', `bar ${node.state ? 'kept' : 'part'}`);
    bar.classList.toggle('live', node.requests > 0);
    bar.classList.toggle('pinned', node.pinned);
    bar.style.left = `${100 * node.begin / end}%`;
    bar.style.width = `${100 * (node.end - node.begin) / end}%`;
    track.append(bar);
    const text = element('div', 'text');
    text.style.paddingLeft = `${Math.min(depth - 1, 12) * 0.9}em`;
    text.append(element('b', '', length), ' ', shown);
    row.append(track, text);
    trie.append(row);
    if (String(node.id) === focused) row.focus({preventScroll: true});
  }
  if (!state.all_nodes) trie.append(element('p', 'empty', 'There are more.'));
}

byId('trie').addEventListener('keydown', (event) => {
  const step = {ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling'}[event.key];
  if (!step || !document.activeElement[step]) return;
  document.activeElement[step].focus();
  event.preventDefault();
});

// ---- Sequences and requests

function stack(parts, whole) {
  const bar = element('div', 'stack');
  for (const [name, tokens] of parts) {
    const part = element('span', name);
    part.style.width = `${100 * tokens / Math.max(whole, 1)}%`;
    bar.append(part);
  }
  return bar;
}

function drawSequences(state) {
  const list = byId('sequences');
  list.replaceChildren();
  if (state.sequences.length === 0) list.append(element('p', 'empty', 'None is at work.'));
  for (const one of state.sequences) {
    const row = element('div', 'row');
    const what = element('div', 'what');
    const place = one.sequence === null ? 'waits' : `sequence ${one.sequence}`;
    what.append(element('span', '', `${place}: ${one.state}`),
        element('span', '', `${number(one.cells)} cells of ${number(state.context)}`));
    const computed = Math.max(Math.min(one.cells, one.prompt_tokens) - one.cached_tokens, 0);
    const bar = stack([['cached', one.cached_tokens], ['computed', computed],
      ['generated', one.generated_tokens]], state.context);
    bar.setAttribute('role', 'img');
    bar.setAttribute('aria-label', `${one.cached_tokens} tokens reused, ${computed} computed, ` +
        `${one.generated_tokens} generated`);
    row.append(what, bar);
    list.append(row);
  }
}

const reasons = {
  new: 'new', differs: 'differs from a cached prompt', evicted: 'had to make room',
  'no state': 'no restore point there', 'restore failed': 'could not be restored',
  'last token': 'last token',
};

function drawEnded(state) {
  const body = byId('ended').tBodies[0];
  body.replaceChildren();
  for (const one of state.ended.slice(-8).reverse()) {
    const row = element('tr');
    const tiers = Object.entries(one.tiers).filter(([, tokens]) => tokens > 0)
        .map(([tier, tokens]) => `${number(tokens)} ${tier}`).join(', ');
    const missed = one.missed.map(({tokens, reason}) => {
      const name = reason.replaceAll('_', ' ');
      return `${number(tokens)} ${reasons[name] || name}`;
    }).join(', ');
    const why = element('td', '', missed);
    if (one.differs_at) why.append(element('div', 'differs', `differs at: ${one.differs_at}`));
    row.append(element('td', '', number(one.prompt_tokens)),
        element('td', '', one.cached_tokens > 0 ?
          `${number(one.cached_tokens)} (${tiers || 'live'})` : '0'),
        why, element('td', '', `${one.first_token_ms.toFixed(1)} ms`));
    body.append(row);
  }
}

// ---- Over time

const history = [];
const shownSeconds = 180;

function drawChart(svg, series) {
  const width = Math.max(svg.clientWidth, 100), height = 66, left = 44;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const now = history.at(-1)?.seconds || 0;
  const most = Math.max(1, ...history.flatMap((point) => series.map(([name]) => point[name])));
  const make = (tag, attributes, text) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    svg.append(made);
  };
  make('line', {class: 'axis', x1: left, x2: width, y1: height - 4, y2: height - 4});
  make('text', {x: 0, y: 12}, number(Math.round(most)));
  make('text', {x: 0, y: height - 4}, '0');
  for (const [name, colour] of series) {
    const points = history.map((point) => {
      const x = width - (now - point.seconds) / shownSeconds * (width - left);
      const y = height - 4 - point[name] / most * (height - 14);
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    if (points.length === 1) points.push(points[0]);
    if (points.length > 0) make('path', {d: `M${points.join('L')}`, class: `line-${colour}`});
  }
}

const tierNames = ['live', 'memory', 'disk', 'remote'];

function drawTiers(state) {
  const shown = tierNames.filter((name) => state.tier_bytes && name in state.tier_bytes);
  drawChart(byId('chart-tiers'), shown.map((name) => [`${name} MiB`, `tier-${name}`]));
  const key = byId('key-tiers');
  key.replaceChildren(...shown.map((name) => {
    const bytes = (state.tier_bytes[name] / 2 ** 20).toFixed(1);
    return element('span', `key-tier-${name}`, `${name} ${bytes}`);
  }));
}

let before = null;

function drawTime(state) {
  const totals = state.totals;
  const now = performance.now() / 1000;  // the clocks of models differ
  if (totals && before) {
    const seconds = Math.max(now - before.at, 0.05);
    const rate = (name) => Math.max(totals[name] - before.totals[name], 0) / seconds;
    history.push({
      seconds: now,
      generated: rate('generated_tokens'),
      reused: rate('reused_tokens'),
      computed: rate('computed_tokens'),
      ...Object.fromEntries(tierNames.map((name) => [`${name} MiB`, (state.tier_bytes[name] || 0) / 2 ** 20])),
    });
    while (history[0].seconds < now - shownSeconds) history.shift();
    byId('rate').textContent = number(Math.round(history.at(-1).generated));
  }
  before = totals ? {at: now, totals} : null;
  drawChart(byId('chart-rate'), [['generated', 'generated']]);
  drawChart(byId('chart-reuse'), [['computed', 'computed'], ['reused', 'cached']]);
  drawTiers(state);
  if (!totals) return;
  const prompts = totals.reused_tokens + totals.computed_tokens;
  const share = prompts > 0 ? Math.round(100 * totals.reused_tokens / prompts) : 0;
  byId('reused').textContent = `${number(totals.reused_tokens)} (${share}%)`;
  byId('held').textContent = number(totals.prefix_tokens);
  byId('memory').textContent = `${(totals.held_bytes / 2 ** 20).toFixed(0)} MiB`;
}

async function poll() {
  try {
    const answer = await request('/state');
    const needsKey = answer.status === 401;
    byId('login').hidden = !needsKey;
    if (needsKey) {
      byId('status').textContent = key ? 'the key is unknown' : 'a key is needed';
    } else if (answer.ok) {
      const state = await answer.json();
      byId('model').textContent = state.model || 'no model is loaded';
      byId('status').textContent = state.sequences.length > 0 ? 'at work' : 'idle';
      drawTrie(state);
      drawSequences(state);
      drawEnded(state);
      drawTime(state);
    } else {
      byId('status').textContent = `the server answered ${answer.status}`;
    }
  } catch {
    byId('status').textContent = 'the server does not answer';
    before = null;
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

byId('login').addEventListener('submit', (event) => {
  event.preventDefault();
  key = byId('key').value.trim();
  sessionStorage.setItem('kvcache-key', key);
  byId('key').value = '';
});

// ---- Chat

let messages = [];
let running = null;

function say(who, className, text) {
  const log = byId('log');
  log.append(element('p', 'who', who));
  const paragraph = element('p', className, text);
  log.append(paragraph);
  log.scrollTop = log.scrollHeight;
  return paragraph;
}

// Shows the prompt's tokens, those in the cache first.
async function showPrompt() {
  const probe = await askJson('/probe', {messages, with_pieces: true});
  const paragraph = say(`prompt: ${number(probe.cached_tokens)} of ${number(probe.prompt_tokens)} ` +
      'tokens from the cache', 'tokens');
  probe.pieces.forEach((piece, index) => {
    const cached = index < probe.cached_tokens;
    const token = element('span', cached ? 't-cached' : 't-computed', piece);
    token.title = `token ${index}: ${cached ? 'from the cache' : 'computed'}`;
    paragraph.append(token);
  });
}

async function* events(body) {
  const decoder = new TextDecoder();
  let text = '';
  for (const reader = body.getReader(); ;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += decoder.decode(value, {stream: true});
    const parts = text.split('\n\n');
    text = parts.pop();
    for (const part of parts) {
      if (part.startsWith('data: ') && part !== 'data: [DONE]') yield JSON.parse(part.slice(6));
    }
  }
}

async function answer() {
  running = new AbortController();
  const paragraph = say('answer', 'tokens', '');
  let text = '';
  try {
    const stream = await request('/v1/chat/completions', {messages, stream: true}, running.signal);
    if (!stream.ok) throw new Error((await stream.json()).error.message);
    for await (const event of events(stream.body)) {
      if (event.error) throw new Error(event.error.message);
      const part = event.choices?.[0]?.delta?.content;
      if (!part) continue;
      text += part;
      paragraph.append(element('span', 't-generated', part));
      byId('log').scrollTop = byId('log').scrollHeight;
    }
  } catch (error) {
    if (error.name !== 'AbortError') throw error;
  } finally {
    running = null;
    messages.push({role: 'assistant', content: text});
  }
}

byId('chat').addEventListener('submit', async (event) => {
  event.preventDefault();
  const message = byId('message').value;
  if (running || !message.trim()) return;
  byId('message').value = '';
  byId('send').disabled = true;
  byId('stop').disabled = false;
  messages.push({role: 'user', content: message});
  say('you', '', message);
  try {
    await showPrompt();
    await answer();
  } catch (error) {
    say('error', 'error', error.message);
  }
  byId('send').disabled = false;
  byId('stop').disabled = true;
  byId('message').focus();
});
byId('message').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId('chat').requestSubmit();
});
byId('stop').addEventListener('click', () => running?.abort());
byId('again').addEventListener('click', () => {
  running?.abort();
  messages = [];
  byId('log').replaceChildren();
});

poll();
