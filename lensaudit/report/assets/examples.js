// One example in words: what was asked, which fact was scored, and where it survives.
function answerOf(one) {
  if (!one.entity) return one.answer ? h('p', { class: 'answer' }, bdi(one.answer)) : null;
  const from = one.answer.indexOf(one.entity, Math.min(one.prefix.length, one.answer.length));
  if (from < 0) return h('p', { class: 'answer' }, bdi(one.prefix), ' ', h('mark', {}, bdi(one.entity)));
  return h('p', { class: 'answer' }, h('bdi', {}, one.answer.slice(0, from), h('mark', {}, one.entity), one.answer.slice(from + one.entity.length)));
}

// What full, this model and retain answer to the question of an example, where they were evaluated.
function askedOf(run, example) {
  const at = place(CONDITIONS[0]).get(example.idx);
  const wanted = [run.model, ...MODELS.map((model, i) => (isAnchor(model) ? i : -1))];
  return [...new Set(wanted)].map((model) => [model, DATA.said.find((one) => one.model === model)?.texts[at]])
    .filter(([, text]) => typeof text === 'string')
    .map(([model, text]) => [model === run.model ? short(run.label, 20) : MODELS[model].role, text]);
}

// The attacks that bring this fact out of this model, where the worst case was asked.
function brokenBy(run, example) {
  return DATA.attacks.filter((one) => one.kind === 'worst' && one.source === run.info.name).map((one) => {
    const fact = one.facts.find((row) => row.idx === example.idx);
    return fact && (fact.unscored || fact.attacks.replaceAll(';', ', ') || 'no attack of the list');
  }).filter(Boolean);
}

function drawDetail(box) {
  const run = heat.run;
  const which = heat.rows[heat.at];
  if (which === undefined) { box.replaceChildren(h('p', { class: 'muted' }, 'No example matches.')); return; }
  const one = run.where.examples[which];
  const { scores, baseline, reasons } = tables(run);
  const score = scores[which];
  const em = run.where.score === 'em' ? run : emOf(run);
  const said = em?.extra.texts?.[place(em.where).get(one.idx)];
  const category = em?.extra.category[place(em.where).get(one.idx)];
  box.replaceChildren(...[
    h('p', { class: 'muted', style: { margin: '0' } }, `idx ${one.idx}${one.group && !one.group.startsWith('idx ') ? ` · author ${one.group}` : ''}`),
    h('p', { class: 'q' }, bdi(one.question || 'The question was not kept with this result; name its forget set with --data.')),
    answerOf(one),
    h('dl', { class: 'facts' },
      h('dt', {}, SCORE_NAMES[run.where.score]), h('dd', {}, Number.isFinite(score)
        ? h('span', { class: `big ${run.where.score === 'em' ? '' : wordClass(score)}` }, fmt(score)) : h('span', { class: 'gone' }, bdi(reasons.get(one.idx) ?? 'unscored'))),
      baseline && [h('dt', {}, 'full says it'), h('dd', {}, `${fmt(baseline[which], 2)} nats per token (p ${fmt(Math.exp(baseline[which]), 2)})`)],
      category && [h('dt', {}, 'exact match'), h('dd', {}, category.replace('_', ' '))],
      askedOf(run, one).map(([who, text]) => [h('dt', {}, `asked, ${who} says`), h('dd', {}, bdi(`“${text.trim()}”`))]),
      brokenBy(run, one).map((attack) => [h('dt', {}, 'brought out by'), h('dd', {}, bdi(attack))]),
      said && Object.entries(said).map(([role, text]) => [h('dt', {}, role === 'source' ? short(run.label, 20) : role), h('dd', {}, bdi(`“${text.trim()}”`))])),
    run.where.score !== 'em' && exampleChart(run, which, Math.min(310, widthOf(box, 200) - 40)),
    tokenMap(run, one),
  ].filter(Boolean));
}

// Where the values of each example begin in the table that was read by token.
const readTable = once((read) => {
  let at = 0;
  const starts = read.extra.tokens.texts.map((texts) => { const here = at; at += texts.length * read.where.layers.length; return here; });
  return { starts, values: shares(read.extra.tokens.base64) };
});

// What full reads in this model's stream after each layer, a strip for each token of the fact.
function tokenMap(run, example) {
  const read = readOf(run);
  const at = read && place(read.where).get(example.idx);
  const texts = read?.extra.tokens.texts[at];
  if (!texts?.length) return null;
  const { starts, values } = readTable(read);
  const { layers } = read.where;
  const row = (token) => layers.map((_, layer) => values[starts[at] + layer * texts.length + token]);
  const what = `layers ${layers[0]} to ${layers.at(-1)}, left to right`;
  return h('div', { class: 'tokens' },
    h('p', { class: 'muted' }, `What full reads in this model’s stream: probability of each token of the fact, ${what}.`),
    h('dl', {}, texts.map((text, token) => [h('dt', {}, bdi(text.trim() || '␣')),
      h('dd', {}, hover(strip(row(token), 'match'), () => h('span', {}, row(token).map((p, layer) => `${layers[layer]}: ${fmt(p, 2)}`).join(' · '))))])),
    h('p', { class: 'range' }, '0', h('span', { class: 'strip', style: { background: gradient('match') } }), '1'));
}

function exampleChart(run, which, width) {
  const { layers } = run.where;
  const { s1, s2 } = tables(run);
  const cut = (values) => Array.from(values.subarray(which * layers.length, (which + 1) * layers.length));
  const [one, two] = [cut(s1), cut(s2)];
  const there = [...one, ...two].filter(Number.isFinite);
  const [low, top] = [Math.min(0, ...there), Math.max(0.1, ...there)];
  const x = linear(-0.5, layers.length - 0.5, 34, width - 2);
  const y = linear(low, top, 108, 10);
  const wide = (x(1) - x(0)) * 0.36 || 8;
  const bar = (value, at, shift, colour) => Number.isFinite(value) && g('rect', { x: x(at) + shift, y: Math.min(y(value), y(0)), width: wide, height: Math.max(1, Math.abs(y(value) - y(0))), fill: colour, rx: 1 });
  return h('div', {}, canvas(width, 132, `S1 and S2 of example ${run.where.examples[which].idx}`, yAxis(ticks(low, top, 3), y, 34, width),
    layers.map((layer, at) => [bar(one[at], at, -wide, css('--s1')), bar(two[at], at, 0, css('--s2')),
      (layers.length <= 16 || at % 4 === 0) && g('text', { x: x(at), y: 126, 'text-anchor': 'middle', style: { 'font-size': '10px' } }, layer)])),
  key(marker(css('--s1'), 'S1, retain'), marker(css('--s2'), 'S2, this model')));
}

// Below this probability per token `full` itself does not say the fact: nothing there can be held.
const KNOWN_FROM = 0.1;

function mountExtremes() {
  if (!HAS_TABLES || !RUNS.some((run) => run.where.score !== 'em')) return;
  const body = section('extremes');
  const draw = () => {
    const run = current.run();
    const { scores, erasure, baseline } = tables(run);
    const { examples, layers } = run.where;
    const known = (at) => !(Math.exp(baseline?.[at] ?? 0) < KNOWN_FROM);
    const ranked = examples.map((_, at) => at).filter((at) => Number.isFinite(scores[at])).sort((a, b) => scores[a] - scores[b]);
    const n = Math.min(5, Math.floor(ranked.length / 2));
    const one = (at) => h('button', { type: 'button', class: 'case', onclick: () => {
      state.set({ find: '', only: '', example: examples[at].idx });
      document.getElementById('examples').scrollIntoView();
    } },
    h('span', { class: `score ${run.where.score === 'em' ? '' : wordClass(scores[at])}` }, fmt(scores[at], 2)),
    h('p', {}, h('b', {}, bdi(short(examples[at].question || `idx ${examples[at].idx}`, 240)))),
    h('p', { class: 'answer' }, bdi(short(examples[at].prefix, 160)), ' ', examples[at].entity && h('mark', {}, bdi(short(examples[at].entity, 160)))),
    run.where.score !== 'em' && strip(Array.from(erasure.subarray(at * layers.length, (at + 1) * layers.length))));
    body.replaceChildren(n === 0 ? h('p', { class: 'muted' }, 'Fewer than two examples were scored.')
      : h('div', { class: 'pair' },
        h('div', {}, h('h3', { class: 'word-hidden' }, 'Most held'), h('div', { class: 'cases' }, ranked.filter(known).slice(0, n).map(one)), ranked.every(known) ? null : h('p', { class: 'muted' }, `Of the ${ranked.filter(known).length} facts that full itself says with p ≥ ${KNOWN_FROM} per token.`)),
        h('div', {}, h('h3', { class: 'word-erased' }, 'Most erased'), h('div', { class: 'cases' }, ranked.slice(-n).reverse().map(one)))));
  };
  state.on(['settings', 'model', 'theme'], draw);
  draw();
}
