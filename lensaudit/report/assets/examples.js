// One example: what was asked, what three models answer, what brings the fact out, where it survives.
const plain = (text) => [...text].map((letter) => (letter.normalize('NFD')[0] ?? letter).toLowerCase()[0]).join('');

// A text with a fact marked wherever it stands in whole words; case, accents and quotes around it do not count.
function marked(text, fact) {
  const wanted = plain(fact).replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, '');
  if (!wanted) return h('bdi', {}, text);
  const first = ['yes', 'no'].includes(wanted) ? '^\\W*' : '';
  const found = plain(text).matchAll(new RegExp(`(?<=${first})(?<![\\p{L}\\p{N}])${wanted.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}(?![\\p{L}\\p{N}])`, 'gu'));
  const letters = [...text];
  let from = 0;
  const parts = [...found].map(({ index }) => {
    const before = letters.slice(from, index).join('');
    from = index + wanted.length;
    return [before, h('mark', {}, letters.slice(index, from).join(''))];
  });
  return h('bdi', {}, parts, letters.slice(from).join(''));
}

const trueAnswer = (one) => (one.answer || one.entity) && h('p', { class: 'answer' }, marked(one.answer.includes(one.entity) ? one.answer : `${one.prefix} ${one.entity}`, one.entity));

// What full, this model and retain answer when they are asked, and after the answer's beginning.
function answersOf(run, example) {
  const em = run.where.score === 'em' ? run : emOf(run);
  const begun = em?.extra.texts?.[rowOf(em.where, example)] ?? {};
  const at = run.where.examples.indexOf(example);
  const asked = DATA.said.filter((one) => one.conditions.includes(run.where.at));
  const modelOf = (role) => (MODELS.find((model) => model.name === run.where[role] && asked.some((one) => MODELS[one.model] === model)) ?? MODELS.find((model) => model.role === role));
  const found = ['full', 'source', 'retain'].map((role) => {
    const model = role === 'source' ? run.info : modelOf(role);
    const told = asked.find((one) => MODELS[one.model] === model);
    const text = told?.texts[at] ?? undefined;
    const prompt = text === undefined ? '' : told.around ? told.around.join(example.question) : told.prompts[at];
    return { role, name: role === 'source' ? run.label : role, asked: text, says: told?.says[at], begun: begun[role], prompt };
  });
  if (!found.some((one) => one.asked !== undefined || one.begun)) return h('p', { class: 'muted' }, 'What the models answer is not among these results: lensaudit eval asks them.');
  const told = (one) => {
    const text = marked(one.asked.trim(), example.entity);
    return [text, one.says && !$('mark', text) && h('span', { class: 'muted' }, ' (the fact in other words)')];
  };
  const truth = (one) => one.role === 'full' && one.asked === undefined && trueAnswer(example);
  return h('div', { class: 'said' }, found.map((one) => h('div', { class: one.role === 'source' ? 'own' : null },
    truth(one) ? [h('h4', {}, 'full was not asked; the true answer'), truth(one)] : [h('h4', {}, bdi(one.name), ` answers${one.prompt ? ` to ${promptName(one.prompt, example)}` : ''}`),
      h('p', {}, one.asked ? told(one) : h('span', { class: 'gone' }, one.asked === '' ? 'nothing' : 'no answer on this page')), sent(one.prompt)],
    one.begun && [h('h4', {}, 'answers after the answer’s beginning'), h('p', {}, marked(one.begun.trim(), example.entity)), sent(`Question: ${example.question}\nAnswer: ${example.prefix}`)])));
}

// The prompt as it was sent, one click away; and what it is called.
const sent = (prompt) => prompt && h('details', { class: 'prompt' }, h('summary', {}, 'the prompt as sent'), h('pre', {}, bdi(prompt)));
function promptName(prompt, example) {
  const [before, after] = prompt.split(example.question);
  return !`${before}${after}`.trim() ? 'the bare question' : before.includes('Question:') ? 'the plain question' : 'the question in its chat template';
}

// What brings this fact out of this model: attacks that hit with what was said, samples, relearning.
function broughtOut(run, example) {
  const of = (kind) => attacksOn(run, kind).filter((one) => isAbout(one, example));
  const line = (what, about, text) => h('li', {}, h('b', {}, bdi(what)), about && h('span', { class: 'muted' }, ` ${about}`), text && h('p', {}, marked(text, example.entity)));
  const worst = of('worst').flatMap((one) => {
    const fact = one.facts.find((row) => row.idx === example.idx);
    if (!fact) return [];
    if (fact.unscored) return [line('not attacked:', fact.unscored)];
    const names = fact.attacks.split(';').filter(Boolean);
    const said = new Map(one.said?.[example.idx]);
    const silent = names.filter((name) => !said.has(name));
    const about = (name) => one.attacks.find((row) => row.name === name)?.about.replaceAll('`', '');
    return [...names.filter((name) => said.has(name)).map((name) => line(name, about(name), said.get(name))),
      silent.length > 0 && line(said.size ? 'and by' : 'by', silent.join(', ')),
      !names.length && line('no attack', `of the ${one.attacks.filter((row) => row.counts).length} that were tried`)];
  });
  const samples = of('sample').flatMap((one) => (one.said?.[example.idx] ?? []).map(([hits, n, text]) => line(`${hits} of ${n} samples`, 'of its answer', text)));
  const again = of('relearn').flatMap((one) => one.rows.filter((row) => row.model === one.source && row.score === 'prob')
    .map((row) => line('one pass over the answers', `all facts${one.examples && one.examples !== run.where.rows ? ' of other rows' : ''} together: their probability goes from ${fmt(row.before, 2)} to ${fmt(row.after, 2)}`)));
  const lines = [...worst, ...samples, ...again].filter(Boolean);
  return h('div', {}, h('h4', {}, 'What brings it out'), lines.length ? h('ul', { class: 'plain' }, lines) : h('p', { class: 'gone' }, 'Not attacked: lensaudit worst tries a list of attacks.'));
}

// Bits that bind the fact to its subject, where who has what was asked.
function bitsOf(run, example) {
  const know = attacksOn(run, 'know').find((one) => one.facts && isAbout(one, example));
  const [bits, why] = know?.facts[example.idx] ?? [];
  if (!know) return null;
  return Number.isFinite(bits) ? [fmt(bits, 2), h('span', { class: 'muted' }, ` of at most ${fmt(know.max_bits, 1)}; a guess: 0`)] : h('span', { class: 'gone' }, bdi(why || 'not asked'));
}

function drawDetail(box) {
  const run = heat.run;
  const which = heat.rows[heat.at];
  if (which === undefined) { box.replaceChildren(h('p', { class: 'muted' }, 'No example matches.')); return; }
  const one = run.where.examples[which];
  const { scores, baseline, reasons } = tables(run);
  const score = scores[which];
  const em = run.where.score === 'em' ? run : emOf(run);
  const category = em?.extra.category[rowOf(em.where, one)];
  const bits = bitsOf(run, one);
  const entry = (label, ...value) => h('div', {}, h('dt', {}, label), h('dd', {}, value));
  const width = Math.min(520, widthOf(box, 200) - 40);
  box.replaceChildren(...[
    h('p', { class: 'muted', style: { margin: '0' } }, [`idx ${one.idx}`, authorOf(one)].filter(Boolean).join(' · ')),
    h('p', { class: 'q' }, bdi(one.question || 'The question was not kept with this result; name its forget set with --data.')),
    trueAnswer(one),
    answersOf(run, one),
    h('dl', { class: 'facts' },
      entry(SCORE_NAMES[run.where.score], Number.isFinite(score)
        ? h('span', { class: `big ${run.where.score === 'em' ? '' : wordClass(score, run.where)}` }, fmt(score)) : h('span', { class: 'gone' }, bdi(reasons.get(one.idx) ?? 'unscored'))),
      baseline && entry('full says it, per token', `p ${fmt(Math.exp(baseline[which]), 2)}`, h('span', { class: 'muted' }, ` (${fmt(baseline[which], 2)} nats)`)),
      bits && entry('bits', bits),
      category && entry('exact match', category.replace('_', ' '))),
    h('div', { class: 'sides' }, broughtOut(run, one), h('div', {}, run.where.score !== 'em' && [h('h4', {}, 'Its layers, nats per token'), exampleChart(run, which, width), run.where.score === 'uds' && exampleSteps(run, which)], tokenMap(run, one))),
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
  const at = read && rowOf(read.where, example);
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

// The way from S1 and S2 to the score, with this fact's numbers; `lensaudit explain` prints the same.
function exampleSteps(run, which) {
  const { layers, settings: { tau } } = run.where;
  const { s1, s2, erasure, baseline, scores } = tables(run);
  const from = which * layers.length;
  const every = Array.from(layers, (layer, at) => ({ layer, s1: s1[from + at], s2: s2[from + at], erasure: erasure[from + at] }));
  const there = every.filter((one) => Number.isFinite(one.erasure));
  const most = every.reduce((a, b) => (b.s1 > a.s1 ? b : a));
  const sum = (of) => there.reduce((total, one) => total + of(one), 0);
  const entity = run.where.examples[which].entity;
  return h('details', { class: 'steps' }, h('summary', {}, 'How this score comes about'), h('ol', {},
    h('li', {}, 'S1, where the fact is: full gives ', bdi(entity || 'the entity'), ` ${fmt(baseline[which])} nats a token. With ${anchorOf(run.where)} stream in place of its own it loses S1, the most ${fmt(most.s1)} nats at layer ${most.layer}. ${every.filter((one) => one.s1 > tauOf(run.where)).length} of ${every.length} layers are above tau ${tau}: they encode the fact.`),
    h('li', {}, 'S2, what is gone: the same with this model’s stream. Erasure is S2 / S1, cut to 0 and 1', there.length > 0 && `: at layer ${there[0].layer} ${fmt(there[0].s2)} / ${fmt(there[0].s1)} is ${fmt(there[0].erasure)}`, '.'),
    h('li', {}, Number.isFinite(scores[which]) ? `UDS, how deep it is erased: the mean of erasure, each layer weighted by S1. ${fmt(sum((one) => one.s1 * one.erasure))} / ${fmt(sum((one) => one.s1))} = ${fmt(scores[which])}. 0: all there; 1: as in a model that never saw it.` : 'UDS is not scored: no layer encodes the fact.')));
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
      (x(1) - x(0) > 15 || at % 4 === 0) && g('text', { x: x(at), y: 126, 'text-anchor': 'middle', style: { 'font-size': '10px' } }, layer)]),
    g('line', { class: 'axis', x1: 34, x2: width, y1: y(0), y2: y(0) })),
  key(marker(css('--s1'), `S1: lost with ${anchorOf(run.where)} stream`), marker(css('--s2'), 'S2: lost with this model’s')));
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
    // a Yes or No, which a coin hits, stands apart
    const closed = (at) => ['yes', 'no'].includes(plain(examples[at].entity).replace(/[^\p{L}]/gu, ''));
    const scored = examples.map((_, at) => at).filter((at) => Number.isFinite(scores[at])).sort((a, b) => scores[a] - scores[b]);
    const [ranked, coins] = [scored.filter((at) => !closed(at)), scored.filter(closed)];
    const n = Math.min(5, Math.floor(ranked.length / 2));
    const one = (at) => h('button', { type: 'button', class: 'case', onclick: () => {
      state.set({ find: '', only: '', example: examples[at].idx });
      document.getElementById('examples').scrollIntoView();
    } },
    h('span', { class: `score ${run.where.score === 'em' ? '' : wordClass(scores[at], run.where)}` }, fmt(scores[at], 2)),
    h('p', {}, h('b', {}, bdi(short(examples[at].question || `idx ${examples[at].idx}`, 240)))),
    h('p', { class: 'answer' }, bdi(short(examples[at].prefix, 160)), ' ', examples[at].entity && h('mark', {}, bdi(short(examples[at].entity, 160)))),
    run.where.score !== 'em' && strip(Array.from(erasure.subarray(at * layers.length, (at + 1) * layers.length)), rampOf(run.where)));
    const [held, erased] = [ranked.filter(known).slice(0, n), ranked.slice(-n).reverse()];
    const every = (rows, word) => run.where.score !== 'em' && rows.every((at) => wordOf(scores[at], run.where) === word);
    const alike = n > 0 && fmt(scores[ranked[0]]) === fmt(scores[ranked.at(-1)]);
    const end = (title, rows, word) => h('div', {}, h('h3', { class: every(rows, word) ? wordClass(scores[rows[0]], run.where) : null }, title), h('div', { class: 'cases' }, rows.map(one)));
    body.replaceChildren(n === 0 ? h('p', { class: 'muted' }, scored.length < 2 ? 'Fewer than two examples were scored.' : 'Fewer than two of the scored examples are no Yes or No.')
      : h('div', { class: 'pair' },
        end(alike ? `All ${ranked.length} ${wordOf(scores[ranked[0]], run.where).replace('hidden', 'held').replace('no verdict', 'read')} alike, such as:` : every(ranked, 'erased') ? `All ${ranked.length} erased; least:` : 'Most held', held, alike ? wordOf(scores[ranked[0]], run.where) : 'hidden'),
        !alike && end(every(ranked, 'hidden') ? `All ${ranked.length} held; least:` : every(erased, 'erased') ? 'Most erased' : 'Least held', erased, 'erased')),
      coins.length > 0 && h('p', { class: 'muted' }, `Apart: ${coins.length} ${coins.length === 1 ? 'answer is' : 'answers are'} Yes or No, which a coin hits; ${SCORE_NAMES[run.where.score]} ${fmt(scores[coins[0]], 2)} to ${fmt(scores[coins.at(-1)], 2)}.`) || '',
      ranked.every(known) ? '' : h('p', { class: 'muted' }, `Most held: of the ${ranked.filter(known).length} facts that full itself says with p ≥ ${KNOWN_FROM} per token.`));
  };
  state.on(['settings', 'model', 'theme'], draw);
  draw();
}
