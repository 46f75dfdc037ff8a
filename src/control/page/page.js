'use strict';
const PERIOD_MS = 1000, HISTORY_MS = 5000, TIMEOUT_MS = 4000, POINTS = 120, LEAST = 12;
const SHAPES = { well: '●', strained: '▲', trouble: '■', waiting: '…' };
const WORDS = { well: 'All is well', strained: 'Holding back', trouble: 'Trouble', waiting: 'No figures yet' };
const find = (name) => document.getElementById(name);
let past = null;

/* Everything goes in as text: names, keys and lines are whatever somebody made up. */
function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function put(name, text) {
  const place = find(name);
  if (place.textContent !== text) place.textContent = text;
}
function number(value) {
  if (value === null || value === undefined) return '–';
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}
function percent(value) { return value === null || value === undefined ? '–' : number(value * 100) + ' %'; }
function pairs(name, all) {
  find(name).replaceChildren(...all.flatMap(([word, value]) => [element('dt', word), element('dd', value)]));
}

/* Rows stay what they are while their text changes, so that nothing flickers and a selection survives. */
function table(section, rows) {
  const body = document.querySelector('#' + section + ' tbody');
  const columns = document.querySelectorAll('#' + section + ' th');
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach(([grade, cells], index) => {
    const row = body.rows[index] || body.insertRow();
    if (row.className !== grade) row.className = grade;
    cells.forEach((text, column) => {
      let cell = row.cells[column];
      if (!cell) {
        cell = row.insertCell();
        cell.className = columns[column].className + (column === 0 ? ' state' : column === 1 ? ' name' : '');
      }
      if (text && text.values) { plot(cell, text); return; }
      if (cell.textContent !== text) cell.textContent = text;
      if (column === 1 && cell.title !== text) cell.title = text;
    });
  });
}
function mark(grade, word) { return SHAPES[grade] + ' ' + word; }
function more(name, count) { put(name, count > 0 ? 'and ' + number(count) + ' more' : ''); }

/* The newest value is at the right edge, the width is that of a minute at least; where a value is missing, the line is broken. */
function draw(svg, values) {
  const most = Math.max(...values, 1e-9);
  const span = Math.max(values.length, LEAST);
  let path = '', pen = 'M';
  values.forEach((each, index) => {
    if (each === null) { pen = 'M'; return; }
    const x = ((span - values.length + index) * POINTS / span).toFixed(1), y = (23 - 22 * each / most).toFixed(1);
    path += pen + x + ' ' + y + (pen === 'M' ? 'h1' : '');
    pen = 'L';
  });
  const line = svg.querySelector('path');
  if (line.getAttribute('d') !== path) line.setAttribute('d', path);
}
function plot(cell, { values, what }) {
  let svg = cell.querySelector('svg');
  if (!svg) {
    svg = find('rates').cloneNode(true);
    svg.removeAttribute('id');
    cell.replaceChildren(svg);
  }
  const known = values.filter((each) => each !== null);
  const label = what + ', last ten minutes: ' + (known.length ? 'now ' + number(known[known.length - 1]) + ', at most ' + number(Math.max(...known)) : 'none');
  if (svg.getAttribute('aria-label') !== label) svg.setAttribute('aria-label', label);
  draw(svg, values);
}
function series(list, key, name, figure, what) {
  const own = past && past[list].find((each) => each[key] === name);
  return { values: own ? own[figure] : [], what };
}

function verdict(grade, word, reasons) {
  document.body.dataset.grade = grade;
  document.title = (grade === 'well' ? '' : SHAPES[grade] + ' ') + 'weir';
  put('shape', SHAPES[grade] || '…');
  put('word', word);
  find('reasons').replaceChildren(...reasons.map(({ grade, text }) => element('li', mark(grade, text), grade)));
}

function show(state) {
  const rates = state.requests.per_second, pressed = state.requests.pressed_per_second, replies = state.reply_ms;
  const grade = state.verdict.grade || 'waiting';
  verdict(grade, WORDS[grade], state.verdict.reasons);
  put('about', 'version ' + state.version + ', up ' + number(state.uptime_seconds) + ' s, quotas version ' + state.quotas_version);
  const refused = rates && rates.refused_throttled + rates.refused_overloaded + rates.refused_deadline
    + rates.refused_unavailable + rates.refused_permission + rates.refused_excess;
  put('rate', number(rates && rates.decoded));
  put('refused', number(refused));
  put('p99', number(replies && replies.p99));
  if (rates) {
    pairs('outcomes', [['sent to stores', number(rates.forwarded)], ['from memory', number(rates.cached)],
      ['since start', number(state.requests.since_start.decoded)]]);
    const because = [['quota', rates.refused_throttled], ['overload', rates.refused_overloaded], ['deadline', rates.refused_deadline],
      ['store away', rates.refused_unavailable], ['permission', rates.refused_permission], ['too much work', rates.refused_excess], ['bad logins', rates.failed_logins],
      ['window full', pressed.window], ['queue', pressed.queue], ['store stalled', pressed.stalled], ['store slow', pressed.latency]];
    pairs('why', because.filter(([, rate], index) => index < 4 || rate > 0).map(([word, rate]) => [word, number(rate)]));
  }
  pairs('replies', replies ? [['p50', number(replies.p50)], ['p90', number(replies.p90)], ['p99.9', number(replies.p99_9)], ['longest', number(replies.max)]] : [['replies', 'none in this second']]);
  shards(state.shards);
  pairs('process', [['clients', number(state.clients.open) + ' of ' + number(state.clients.max)], ['memory', number(state.resident_bytes / 1048576) + ' MiB']]);
  table('stores', state.stores.map((store) => [store.grade, [mark(store.grade, store.state), store.name,
    store.in_flight + ' of ' + store.window, number(store.queue + store.heavy_queue), number(store.median_ms), number(store.base_ms),
    number(store.queue_age_ms), String(store.level), number(store.latency_ratio), store.breaker, number(store.ejections),
    series('stores', 'name', store.name, 'median_ms', 'median ms of ' + store.name)]]));
  table('tenants', state.tenants.map((tenant) => [tenant.grade, [mark(tenant.grade, tenant.state), tenant.name,
    number(tenant.admitted + tenant.cached), tenant.ru_per_second === null ? 'no quota' : percent(tenant.share_of_quota) + ' of ' + number(tenant.ru_per_second),
    number(tenant.throttled), number(tenant.shed), number(tenant.cached), number(tenant.minute.throttled + tenant.minute.shed),
    number(tenant.suggested_ru_per_second), series('tenants', 'name', tenant.name, 'used_ru_per_second', 'RU/s of ' + tenant.name)]]));
  table('keys', state.hot_keys.map((key) => {
    const grade = key.hot_for_seconds === null ? 'well' : 'strained';
    return [grade, [mark(grade, key.state), key.key, number(key.reads_per_second), number(key.writes_per_second), percent(key.share),
      percent(key.hits), key.tenant === null ? '–' : key.tenant, String(key.home), number(key.hot_for_seconds),
      key.tracked ? 'yes' : 'no',
      series('hot_keys', 'key', key.key, 'reads_per_second', 'reads a second of ' + key.key)]];
  }));
  more('stores-more', state.stores_left_out);
  more('tenants-more', state.tenants_left_out);
  more('keys-more', state.hot_keys_left_out);
  log(state.log);
}

function shards(all) {
  const list = find('shards');
  while (list.children.length > all.length) list.lastChild.remove();
  all.forEach((shard, index) => {
    let item = list.children[index];
    if (!item) {
      item = element('li');
      const bar = element('meter');
      bar.max = 1; bar.high = 0.9; bar.setAttribute('aria-label', 'CPU of shard ' + shard.shard);
      item.append(element('span', String(shard.shard)), bar, element('span'));
      list.append(item);
    }
    item.children[1].value = shard.cpu || 0;
    item.children[2].textContent = percent(shard.cpu);
  });
}

let newest = 0;
function log(lines) {
  const list = document.querySelector('#log ol');
  const last = lines.length ? lines[0].number : 0;
  if (last === newest && list.children.length) return;
  newest = last;
  const items = lines.map(({ at, about, text }) => {
    const item = element('li'), time = element('time', at.slice(0, 19).replace('T', ' '));
    time.dateTime = at;
    item.append(time, ' ', element('b', about), ' ', element('span', text));
    return item;
  });
  list.replaceChildren(...(items.length ? items : [element('li', 'nothing yet')]));
}

/* Names within names are written with dots between. */
function flat(value, name) {
  if (value === null || typeof value !== 'object') return [[name, String(value)]];
  return Object.entries(value).flatMap(([inner, each]) => flat(each, name ? name + '.' + inner : inner));
}
async function explain(event) {
  event.preventDefault();
  const query = new URLSearchParams({ tenant: find('tenant').value, command: find('command').value });
  try {
    const response = await fetch('/explain?' + query, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
    const told = await response.json();
    pairs('answer', response.ok ? flat(told, '') : [['not explained', told.detail || 'status ' + response.status]]);
  } catch (error) {
    pairs('answer', [['not explained', error.message]]);
  }
}
find('question').addEventListener('submit', explain);

let remembered = -Infinity;
async function remember() {
  if (performance.now() - remembered < HISTORY_MS) return;
  const response = await fetch('/history.json', { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) return;
  past = await response.json();
  remembered = performance.now();
  [['rates', 'requests_per_second'], ['refusals', 'refused_per_second'], ['latencies', 'reply_ms_p99']]
    .forEach(([name, figure]) => draw(find(name), past[figure]));
}

let timer = 0, answered = 0;
async function look() {
  clearTimeout(timer);
  const started = performance.now();
  try {
    const response = await fetch('/state.json', { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) throw new Error((await response.text()).slice(0, 200).trim() || 'status ' + response.status);
    await remember().catch(() => {});
    show(await response.json());
    answered = Date.now();
    document.body.dataset.looks = Number(document.body.dataset.looks || 0) + 1;
  } catch (error) {
    verdict('trouble', 'No figures', [{ grade: 'trouble', text: 'weir does not tell them: ' + error.message
      + (answered ? '. What is below is ' + Math.round((Date.now() - answered) / 1000) + ' s old' : '') }]);
  }
  put('age', answered ? 'Last answer ' + new Date(answered).toISOString().slice(11, 19) + ' UTC.' : '');
  if (!document.hidden) timer = setTimeout(look, Math.max(50, PERIOD_MS - (performance.now() - started)));
}
document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
look();
