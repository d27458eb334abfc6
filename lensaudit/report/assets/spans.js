// Every row of a review: the span moves by click or key; the download is the review file itself.
const given = JSON.parse($('#data').textContent);
const rows = given.rows.map((row) => {
  const start = row.before.length;
  return { ...row, answer: row.before + row.entity + row.after, first: [start, start + row.entity.length] };
});
const fresh = () => rows.map((row) => ({ span: row.first, seen: false, out: false }));
const kept = `lensaudit ${given.key}`;
let states = fresh();
try {
  const before = JSON.parse(localStorage.getItem(kept));
  if (before?.length === rows.length) states = before;
} catch { /* nothing is kept where the browser forbids it */ }
let at = Math.max(0, rows.findIndex((row) => row.remarks.length > 0));
let only = 'all';

const reviewed = (n) => states[n].seen || rows[n].seen;
let order = 'doubt';
const doubtful = (n) => rows[n].remarks.length > 0;
const inOrder = () => { const all = rows.map((_, n) => n); return order === 'doubt' ? [...all.filter(doubtful), ...all.filter((n) => !doubtful(n))] : all; };
const shownRows = () => inOrder().filter((n) => only === 'all' || (only === 'open' ? !reviewed(n) && !states[n].out : doubtful(n)));

// Words, also where no blank stands between them.
function words(text) {
  if (!globalThis.Intl?.Segmenter) return [...text.matchAll(/[\p{L}\p{N}]+/gu)].map((one) => [one.index, one.index + one[0].length]);
  return [...new Intl.Segmenter('und', { granularity: 'word' }).segment(text)]
    .filter((one) => one.isWordLike).map((one) => [one.index, one.index + one.segment.length]);
}

function set(n, span) {
  const text = rows[n].answer.slice(...span);
  const start = span[0] + text.length - text.trimStart().length;
  const end = span[1] - (text.length - text.trimEnd().length);
  if (start < end) states[n] = { span: [start, end], seen: true, out: false };
  changed(n);
}

// `side` 0 is the beginning of the span, 1 its end; a span of one word moves whole.
function move(n, side, by) {
  const all = words(rows[n].answer);
  const [start, end] = states[n].span;
  if (start === end) return all.length ? set(n, all[0]) : undefined;
  const places = all.map((word) => word[side]);
  const here = states[n].span[side];
  const to = by > 0 ? places.find((one) => one > here) : places.findLast((one) => one < here);
  if (to === undefined) return undefined;
  const span = side === 0 ? [to, end] : [start, to];
  return set(n, span[0] < span[1] ? span : all.find((word) => word[side] === to));
}

function changed(n) {
  try { localStorage.setItem(kept, JSON.stringify(states)); } catch { /* as above */ }
  const card = $(`#row-${n}`);
  if (card) card.replaceWith(article(n));
  count();
}

function article(n) {
  const row = rows[n];
  const { span: [start, end], out } = states[n];
  const state = out ? 'left out' : reviewed(n) ? 'reviewed' : 'by rule, not reviewed';
  return h('article', { id: `row-${n}`, class: `row${n === at ? ' here' : ''}${out ? ' out' : ''}`, 'aria-current': n === at ? 'true' : null },
    h('p', { class: 'muted' }, bdi(row.name), ' · ', h('span', { class: reviewed(n) ? 'seen' : 'rule' }, state)),
    !reviewed(n) && row.remarks.length ? h('p', { class: 'check' }, 'CHECK: ', bdi(row.remarks.join('; '))) : null,
    h('p', { class: 'q' }, bdi(row.question)),
    h('p', { class: 'a' }, bdi([row.answer.slice(0, start), h('mark', {}, row.answer.slice(start, end)), row.answer.slice(end)])),
    h('p', { class: 'does' },
      button('right as it is', () => confirm(n)), button(out ? 'take in' : 'leave out', () => leave(n)),
      button('as proposed', () => undo(n))));
}

function confirm(n) {
  if (states[n].span[0] < states[n].span[1]) { states[n].seen = true; changed(n); }
  const shown = shownRows();
  go(shown.slice(shown.indexOf(n) + 1).find((one) => !reviewed(one)) ?? n);
}
function leave(n) { states[n].out = !states[n].out; changed(n); }
function undo(n) { states[n] = fresh()[n]; changed(n); }

function go(n) {
  const before = at;
  at = n;
  for (const one of new Set([before, n])) { const card = $(`#row-${one}`); if (card) card.replaceWith(article(one)); }
  $(`#row-${n}`)?.scrollIntoView({ block: 'center', behavior: 'instant' });
}

function count() {
  const left = states.filter((one) => one.out).length;
  const done = rows.filter((_, n) => reviewed(n) && !states[n].out).length;
  $('#done').max = Math.max(1, rows.length - left);
  $('#done').value = done;
  $('#said').textContent = `${done} of ${rows.length - left} spans reviewed${left ? `, ${left} rows left out` : ''}`;
}

const ESCAPES = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '[': '\\[', ']': '\\]' };
const escaped = (text) => text.replace(/[\\\n\r[\]]/g, (one) => ESCAPES[one]);

// As `lensaudit annotate` writes it: a row that nobody looked at keeps its rule.
function review() {
  const blocks = rows.map((row, n) => {
    const { span: [start, end], seen, out } = states[n];
    const head = row.head + (row.rule && !seen ? ` (${row.rule})` : '');
    const remarks = seen ? [] : row.remarks.map((one) => `# CHECK: ${escaped(one)}`);
    const marked = `${escaped(row.answer.slice(0, start))}[[${escaped(row.answer.slice(start, end))}]]${escaped(row.answer.slice(end))}`;
    const relation = row.relation ? [`R: ${escaped(row.relation)}`] : [];
    return out ? [] : [[head, ...remarks, ...relation, `Q: ${escaped(row.question)}`, `A: ${marked}`, ''].join('\n')];
  });
  return [...given.help, '', ...blocks.flat()].join('\n');
}

function list() {
  const shown = shownRows();
  if (!shown.includes(at)) at = shown[0] ?? at;
  $('#filter').replaceChildren(segments('rows', [['all', 'all'], ['open', 'not reviewed'], ['check', 'CHECK']], only, (key) => { only = key; list(); }), ' ', segments('order', [['doubt', 'doubtful first'], ['file', 'as in the file']], order, (key) => { order = key; at = shownRows()[0] ?? at; list(); }));
  $('#rows').replaceChildren(...shown.map(article));
  count();
}

// The word under a click, or what was selected.
function place(box, node, offset) {
  const range = document.createRange();
  range.setStart(box, 0);
  range.setEnd(node, offset);
  return range.toString().length;
}
$('#rows').addEventListener('click', (event) => {
  const card = event.target.closest('article');
  const box = event.target.closest('.a bdi');
  if (!card) return;
  const n = Number(card.id.slice(4));
  if (!box) { if (!event.target.closest('button')) go(n); return; }
  const chosen = getSelection();
  if (!event.shiftKey && !chosen.isCollapsed && box.contains(chosen.anchorNode) && box.contains(chosen.focusNode)) {
    const ends = [place(box, chosen.anchorNode, chosen.anchorOffset), place(box, chosen.focusNode, chosen.focusOffset)];
    set(n, ends.sort((a, b) => a - b));
  } else {
    const caret = document.caretPositionFromPoint?.(event.clientX, event.clientY);
    const range = caret ? null : document.caretRangeFromPoint?.(event.clientX, event.clientY);
    const [node, offset] = caret ? [caret.offsetNode, caret.offset] : [range?.startContainer, range?.startOffset];
    const here = node && box.contains(node) ? place(box, node, offset) : -1;
    const word = words(rows[n].answer).find((one) => one[0] <= here && here <= one[1]);
    const [start, end] = states[n].span;
    if (word) set(n, event.shiftKey && start < end ? [Math.min(start, word[0]), Math.max(end, word[1])] : word);
  }
  chosen.removeAllRanges();
  go(n);
});

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('button, input')) return;
  const shown = shownRows();
  const next = (by) => { const to = shown[shown.indexOf(at) + by]; if (to !== undefined) go(to); };
  const does = {
    ArrowDown: () => next(1), j: () => next(1), ArrowUp: () => next(-1), k: () => next(-1),
    ArrowLeft: () => move(at, event.shiftKey ? 1 : 0, -1), ArrowRight: () => move(at, event.shiftKey ? 1 : 0, 1),
    Enter: () => confirm(at), x: () => leave(at), u: () => undo(at),
  }[event.key];
  if (does && shown.length) { event.preventDefault(); does(); }
});
$('#save').addEventListener('click', () => save(given.name, 'text/plain', review()));
document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
list();
document.documentElement.dataset.ready = 'true';
