// A conversation with the model. Lines below the words say which tokens came out of the cache.
import {askJson, byId, element, foreign, number, request, visible} from './texts.js';

const singleTokens = 1000;  // of a prompt; the others are shown together

let model = '';  // empty: the server's first
let messages = [];
let running = null;

export function chatWith(name) {
  model = name;
}

function say(who, className, text) {
  const log = byId('log');
  log.append(element('p', 'who', who));
  const paragraph = foreign('p', className, text, {breaks: true});
  log.append(paragraph);
  log.scrollTop = log.scrollHeight;
  return paragraph;
}

const ofModel = (body) => model ? {...body, model} : body;

function showPieces(paragraph, pieces, cached) {
  const add = (text, index) => {
    const token = element('span', index < cached ? 't-cached' : 't-computed');
    token.append(visible(text, {breaks: true, inside: true}));
    paragraph.append(token);
  };
  const single = pieces.slice(0, singleTokens);
  single.forEach(add);
  const rest = Math.max(single.length, Math.min(cached, pieces.length));
  if (rest > single.length) add(pieces.slice(single.length, rest).join(''), 0);
  if (rest < pieces.length) add(pieces.slice(rest).join(''), pieces.length);
}

async function showPrompt() {
  const probe = await askJson('/probe', ofModel({messages, with_pieces: true}));
  const paragraph = say(`prompt: ${number(probe.cached_tokens)} of ${number(probe.prompt_tokens)} ` +
      'tokens from the cache', 'tokens', '');
  showPieces(paragraph, probe.pieces, probe.cached_tokens);
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
    const body = ofModel({messages, stream: true});
    const stream = await request('/v1/chat/completions', body, running.signal);
    if (!stream.ok) throw new Error((await stream.json()).error.message);
    for await (const event of events(stream.body)) {
      if (event.error) throw new Error(event.error.message);
      const part = event.choices?.[0]?.delta?.content;
      if (!part) continue;
      text += part;
      const token = element('span', 't-generated');
      token.append(visible(part, {breaks: true, inside: true}));
      paragraph.append(token);
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
