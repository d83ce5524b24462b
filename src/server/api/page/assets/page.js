// Shows what /state says, once a second. Texts are never read as HTML.
import {drawCharts, forgetRates} from './page/charts.js';
import {chatWith} from './page/chat.js';
import {drawFigures} from './page/figures.js';
import {drawPrefixes} from './page/prefixes.js';
import {drawRequests, drawSequences} from './page/requests.js';
import {byId, element, hasKey, request, setText, useKey} from './page/texts.js';

const everyMs = 1000, everyHiddenMs = 5000;

// ---- The model

let chosen = '';  // empty: the one that was asked for last

function drawChoice(state) {
  const names = [...state.models];
  if (chosen && !names.includes(chosen)) names.push(chosen);
  const select = byId('models');
  select.parentElement.hidden = names.length < 2 && !chosen;
  byId('model').hidden = !select.parentElement.hidden;
  setText(byId('model'), state.model || 'no model is loaded');
  const texts = names.map((name) => state.models.includes(name) ? name : `${name} (not loaded)`);
  const last = state.models[0] ? `the last one used: ${state.models[0]}` : 'the last one used';
  const seen = JSON.stringify([last, names, texts]);
  if (select.dataset.seen === seen) return;
  select.dataset.seen = seen;
  const option = (name, text) => {
    const made = element('option', '', text);
    made.value = name;
    return made;
  };
  select.replaceChildren(option('', last), ...names.map((name, i) => option(name, texts[i])));
  select.value = chosen;
}

byId('models').addEventListener('change', () => {
  chosen = byId('models').value;
  chatWith(chosen);
  poll();
});

// ---- The state

function draw(state) {
  const missing = state.model === null && chosen;
  setText(byId('status'), missing ? `${chosen} is not loaded` :
      state.sequences.length > 0 || state.running.length > 0 ? 'at work' : 'idle');
  drawChoice(state);
  drawPrefixes(state, chosen);
  drawSequences(state);
  drawRequests(state);
  drawFigures(state);
  drawCharts(state);
}

let round = 0;
let timer = 0;

async function poll() {
  clearTimeout(timer);
  const own = ++round;
  try {
    const answer = await request(chosen ? `/state?model=${encodeURIComponent(chosen)}` : '/state');
    const state = answer.ok ? await answer.json() : null;
    if (own !== round) return;  // another model was chosen in between
    const needsKey = answer.status === 401;
    byId('login').hidden = !needsKey;
    document.body.classList.toggle('stale', !answer.ok);
    if (state) draw(state);
    else if (needsKey) setText(byId('status'), hasKey() ? 'the key is unknown' : 'a key is needed');
    else setText(byId('status'), `the server answered ${answer.status}`);
  } catch {
    if (own !== round) return;
    document.body.classList.add('stale');
    setText(byId('status'), 'the server does not answer; it is asked again');
    forgetRates();
  }
  timer = setTimeout(poll, document.hidden ? everyHiddenMs : everyMs);
}

document.addEventListener('visibilitychange', () => {
  if (!document.hidden) poll();
});

byId('login').addEventListener('submit', (event) => {
  event.preventDefault();
  useKey(byId('key').value.trim());
  byId('key').value = '';
  poll();
});

poll();
