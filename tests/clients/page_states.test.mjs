// The page beside states of a server that are rare: contrasts, sizes and texts of all kinds, many and none of everything,
// and a server or a model that goes and comes back.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

import {check, desk, open, patience, phone, schemes, shoot} from './browser.mjs';
import {empty, ended, failed, filled, node} from './page_state.mjs';

// With all parts filled and a row open; what comes after is not drawn.
async function openFilled(options) {
  let round = 0;
  const opened = await open({state: () => filled(round++), prefix: () => ({length: 7798, from: 0, end: 4096, text: 'All of it.\n'}), ...options});
  const {page} = opened;
  await page.locator('#chart-tiers path.line-tier-remote').waitFor({state: 'attached', timeout: patience});
  await page.getByRole('treeitem').nth(1).locator('.line').click();
  await page.getByText('All of it.').waitFor({timeout: patience});
  await page.evaluate(() => {
    const log = document.getElementById('log');
    for (const name of ['t-cached', 't-computed', 't-generated']) {
      log.append(Object.assign(document.createElement('span'), {className: name, textContent: 'word '}));
    }
    globalThis.fetch = () => new Promise(() => {});
  });
  await page.waitForTimeout(300);
  return opened;
}

check('is accessible, in both schemes and on phones', async () => {
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  for (const colorScheme of schemes) {
    for (const viewport of [desk, phone]) {
      const {page, problems} = await openFilled({colorScheme, viewport});
      await page.evaluate(axe);
      const {violations, passes} = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(violations.map(({id, nodes}) => [id, nodes.map(({html}) => html)]), []);
      assert.ok(passes.length > 10);
      assert.deepEqual(problems, []);
      await shoot(page, `filled-${colorScheme}-${viewport.width}`);
      await page.close();
    }
  }
});

// Returns what has too little contrast with the ground that it stands on: [what, contrast].
function weakContrasts() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const opaque = (colour) => channels(colour)[3] !== 0;
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3).map((value) => value / 255)
        .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const {backgroundColor} = getComputedStyle(at);
      if (opaque(backgroundColor)) return backgroundColor;
    }
    return 'rgb(255, 255, 255)';
  };
  const weak = [];
  const seen = {bars: 0, lines: 0, texts: 0};
  const expect = (what, colour, behind, least, kind) => {
    ++seen[kind];
    const found = contrast(colour, behind);
    if (found < least) weak.push([what, found.toFixed(2)]);
  };
  const name = (element) => `${element.tagName} ${element.getAttribute('class')}`;
  for (const bar of document.querySelectorAll('.bar, .swatch, .mark')) {
    const style = getComputedStyle(bar);
    const behind = ground(bar.parentElement);
    expect(name(bar), style.backgroundColor, behind, 3, 'bars');
    // Also where a row is looked at or pointed to.
    for (const other of ['--ground', '--paper']) {
      document.body.style.setProperty('outline-color', `var(${other})`);
      expect(`${name(bar)} on ${other}`, style.backgroundColor, getComputedStyle(document.body).outlineColor, 3, 'bars');
    }
    // The neighbour begins after a stripe of the ground.
    const isLast = !bar.nextElementSibling?.matches('.bar');
    if (!isLast && !(parseFloat(style.borderRightWidth) >= 1)) weak.push([`${name(bar)} beside the next`, 'no stripe']);
    if (!isLast) expect(`${name(bar)} beside the next`, style.backgroundColor, style.borderRightColor, 3, 'bars');
  }
  for (const line of document.querySelectorAll('svg path, svg .axis, svg circle')) {
    const style = getComputedStyle(line);
    expect(name(line), line.tagName === 'circle' ? style.fill : style.stroke, ground(line.parentElement), 3, 'lines');
  }
  for (const edge of document.querySelectorAll('.t-cached, .t-computed, .t-generated')) {
    expect(name(edge), getComputedStyle(edge).borderBottomColor, ground(edge), 3, 'lines');
  }
  for (const box of document.querySelectorAll('button, textarea, select, .stack, .meter')) {
    const style = getComputedStyle(box);
    const colour = box.matches('.stack, .meter') ? style.boxShadow.match(/rgba?\([^)]*\)/)[0] : style.borderTopColor;
    expect(`edge of ${name(box)}`, colour, ground(box.parentElement), 3, 'lines');
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.matches('svg text')) continue;
    expect(`text of ${name(element)}`, getComputedStyle(element).color, ground(element), 4.5, 'texts');
  }
  for (const text of document.querySelectorAll('svg text')) {
    expect('text of a chart', getComputedStyle(text).fill, ground(text), 4.5, 'texts');
  }
  return {weak, seen};
}

check('has contrast: bars and lines 3, texts 4.5', async () => {
  for (const colorScheme of schemes) {
    const {page} = await openFilled({colorScheme});
    const {weak, seen} = await page.evaluate(weakContrasts);
    assert.deepEqual(weak, [], colorScheme);
    assert.ok(seen.bars > 60 && seen.lines > 20 && seen.texts > 80, JSON.stringify(seen));
    await page.close();
  }
});

check('keeps samples and their words together on phones', async () => {
  for (const width of [320, 360, 412]) {
    const {page} = await openFilled({viewport: {width, height: 740}});
    const broken = await page.evaluate(() => [...document.querySelectorAll('.legend li')].filter((item) => {
      const words = document.createRange();
      words.selectNodeContents(item);
      const [first, ...others] = [...words.getClientRects()];
      return others.some(({top, bottom}) => top >= first.bottom || bottom <= first.top) ||
          item.getBoundingClientRect().right > innerWidth;
    }).map((item) => item.textContent));
    assert.deepEqual(broken, [], `${width} pixels`);
    assert.ok(await page.locator('.legend li').count() > 10);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(wide, false, `${width} pixels need no scrolling to the side`);
    await page.close();
  }
});

check('shows a short prefix beside a long one, on an axis', async () => {
  const nodes = [node(1, 0, 30000, 'long', {whole: false}), node(2, 0, 5, 'short'), node(3, 30000, 30005, 'late', {parent: 1})];
  for (const viewport of [desk, phone]) {
    const {page} = await open({state: () => ({...empty, nodes}), viewport});
    await page.getByText('short').waitFor({timeout: patience});
    const boxes = await Promise.all([0, 1, 2].map((i) => page.getByRole('treeitem').nth(i).locator('.bar').boundingBox()));
    const [long, short, late] = boxes;
    assert.ok(short.width >= 4 && short.width < long.width / 4, `${short.width} of ${long.width} pixels`);
    assert.ok(late.width >= 4 && late.x > long.x + long.width * 0.9);
    assert.match(await page.locator('#axis').innerText(), /0\s+10\s+100\s+1k\s+10k\s+30,005\s+tokens from the beginning \(logarithmic\)/);
    await page.close();
  }
});

check('shows blanks, control characters and what turns texts', async () => {
  const text = ' a  b\tc\nd \r\ne\u0000\u001b[31m\u007f\u0085\u202egnp\u200b\u00a0 ';
  const nodes = [node(1, 0, 9, text), node(2, 0, 9, '<s> مرحبا <b>بالعالم</b>'), node(3, 0, 9, '   '), node(4, 0, 9, '')];
  const {page, problems} = await open({state: () => ({...empty, nodes, ended: [failed(1, text)]}), viewport: phone});
  const row = page.getByRole('treeitem').first();
  await row.waitFor({timeout: patience});
  const seen = '·a··b⇥c↵d·␍↵e␀␛[31m␡U+0085U+202EgnpU+200BU+00A0·';
  assert.equal(await row.locator('.text').textContent(), seen);
  await row.locator('.line').click();
  assert.equal((await row.locator('.body').textContent()).replaceAll('\n', ''), seen);
  assert.equal((await page.locator('#ended .error').textContent()).replaceAll('\n', ''), seen);
  assert.equal(await page.getByRole('treeitem').nth(1).locator('.text').textContent(), nodes[1].text);
  assert.equal(await page.getByRole('treeitem').nth(2).locator('.text').textContent(), '···');
  assert.equal(await page.locator('#trie b').count(), 0);
  const lefts = await page.locator('.node .count').evaluateAll((all) => all.map((one) => one.getBoundingClientRect().left));
  assert.equal(new Set(lefts).size, 1, 'a text from right to left turns nothing around it');
  assert.deepEqual(problems, []);
  await page.close();
});

check('shows nothing, one, and ten thousand', async () => {
  const many = Array.from({length: 256}, (_, i) => node(i + 1, 0, 100 + i, `prompt ${i} ${'x'.repeat(2000)}`, {parent: 0}));
  const requests = Array.from({length: 64}, (_, i) => ended(i + 1));
  let state = empty;
  const {page, problems} = await open({state: () => state});
  await page.getByText('No prompt is in memory. Ask something below.').waitFor({timeout: patience});
  await page.getByText('There was no request yet.').waitFor();
  await page.getByText('None is at work.').waitFor();
  state = {...empty, nodes: [node(1, 0, 1, 'a')], ended: [ended(1, {prompt_tokens: 1, cached_tokens: 0, missed: []})]};
  await page.getByRole('treeitem').waitFor({timeout: patience});
  assert.equal(await page.locator('#ended tbody tr').count(), 1);
  state = {...empty, nodes: many, all_nodes: false, ended: requests};
  await page.getByText('These are the 256 that were used last; there are more.').waitFor({timeout: patience});
  assert.equal(await page.locator('#ended tbody tr').count(), 12);
  await page.getByRole('button', {name: 'Show all 64'}).click();
  assert.equal(await page.locator('#ended tbody tr').count(), 64);
  assert.ok(await page.evaluate(() => document.querySelectorAll('*').length) < 8000);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
  state = empty;
  await page.getByText('There was no request yet.').waitFor({timeout: patience});
  assert.equal(await page.getByRole('treeitem').count(), 0);
  assert.deepEqual(problems, []);
  await page.close();
});

check('keeps the row, the focus and the whole text that one reads', async () => {
  let end = 20;
  const {page} = await open({state: () => ({...empty, nodes: [node(7, 0, 9, 'one'), node(5, 0, end, `grows to ${end}`)]})});
  const row = page.getByRole('treeitem').nth(1);
  await row.locator('.line').click();
  end = 30;
  await row.locator('.body').getByText('grows to 30').waitFor({timeout: patience});
  assert.equal(await row.evaluate((item) => item === document.activeElement), true);
  assert.match(await row.locator('.facts').innerText(), /tokens 0 to 30/);
  await page.close();
});

check('goes on when the server was gone', async () => {
  let state = filled();
  const {page} = await open({state: () => state});
  await page.getByRole('status').getByText('at work').waitFor({timeout: patience});
  state = null;
  await page.getByRole('status').getByText('the server does not answer').waitFor({timeout: patience});
  assert.equal(await page.getByRole('treeitem').count(), 6, 'what was seen stays');
  state = 503;
  await page.getByRole('status').getByText('the server answered 503').waitFor({timeout: patience});
  state = empty;
  await page.getByRole('status').getByText('idle', {exact: true}).waitFor({timeout: patience});
  assert.equal(await page.getByRole('treeitem').count(), 0);
  await page.close();
});

check('asks for a key', async () => {
  let state = 401;
  const {page} = await open({state: () => state});
  await page.getByRole('status').getByText('a key is needed').waitFor({timeout: patience});
  await page.getByLabel('This server needs an API key.').fill('wrong');
  await page.getByRole('button', {name: 'Show'}).click();
  await page.getByRole('status').getByText('the key is unknown').waitFor({timeout: patience});
  state = {...empty, ended: [ended(1)]};  // as users see it who are no administrators
  await page.getByRole('status').getByText('idle', {exact: true}).waitFor({timeout: patience});
  for (const hidden of ['#login', '#figures', '#memory-section', '#time-section']) {
    assert.equal(await page.locator(hidden).isVisible(), false, hidden);
  }
  await page.close();
});

check('shows the model that is chosen, also when it is unloaded', async () => {
  let loaded = ['story', 'tale'];
  const state = (query) => {
    const model = query.get('model') ?? loaded[0];
    return loaded.includes(model) ? {...empty, model, models: loaded, nodes: [node(1, 0, 9, `of ${model}`)]} :
      {...empty, model: null, models: loaded};
  };
  const {page, problems} = await open({state});
  await page.getByText('of story').waitFor({timeout: patience});
  await page.getByLabel('Model').selectOption('tale');
  await page.getByText('of tale').waitFor({timeout: patience});
  loaded = ['story'];
  await page.getByText('tale is not loaded; a request loads it.').waitFor({timeout: patience});
  assert.equal(await page.getByLabel('Model').inputValue(), 'tale');
  loaded = ['tale', 'story'];
  await page.getByText('of tale').waitFor({timeout: patience});
  await page.getByLabel('Model').selectOption('');
  loaded = ['story'];
  await page.getByText('of story').waitFor({timeout: patience});
  assert.deepEqual(problems, []);
  await page.close();
});

check('shows requests with all that is known of them', async () => {
  const {page} = await open({state: () => filled()});
  const rows = page.locator('#ended tbody tr');
  await rows.first().waitFor({timeout: patience});
  const texts = await rows.allInnerTexts();
  assert.equal(texts.length, 7);
  const [waits, reads, writes, differs, cancelled, failure, done] = texts;
  for (const [text, ...parts] of [
    [waits, 'waits'], [reads, 'reads', '100 tokens, 40 reused (30 live, 10 disk)'], [writes, 'writes', '20 tokens', '12.3 ms'],
    [differs, '5 no restore point there, 55 differs from a cached prompt', 'It is 11:30 now.', 'token 45, cached: 29'],
    [cancelled, 'cancelled'], [failure, 'failed 400', 'the prompt has 40,213 tokens'],
    [done, 'POST /v1/chat/completions', 'story', 'user alice', 'done', 'parked once', '20 tokens', 'ended by itself', '457 ms'],
  ]) {
    for (const part of parts) assert.ok(text.replace(/\s+/g, ' ').includes(part), `${part} in ${text}`);
  }
  assert.equal(await page.locator('#ended mark').textContent(), '30');
  await page.close();
});
