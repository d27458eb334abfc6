// Output metrics of the chosen model, beside another and the anchors.
const SPLITS = ['forget', 'retain', 'ra', 'wf'];
const splitAndLength = ({ name }) => 100 * (SPLITS.includes(name.split('_')[0]) ? SPLITS.indexOf(name.split('_')[0]) : SPLITS.length) + name.length;
const DIRECTIONS = { knows: 'high = knows', forgot: 'high = erased' };
const KEPT = /^(retain|ra|wf)_|utility/;
const LOST = { collateral: 'high = lost', uds_validity: 'high = unreadable' };
const direction = (kind) => LOST[kind.name] ?? (kind.high_means === 'knows' && KEPT.test(kind.name) ? 'high = keeps' : DIRECTIONS[kind.high_means] ?? (kind.family === 'aggregate' ? '' : 'which way was not recorded'));
// Families in the order in which a reader looks for them; others follow.
const FAMILIES = {
  probability: 'Probability of an answer', rouge: 'ROUGE of what it writes', truth_ratio: 'Truth ratio', memorization: 'Memorisation: exact match, extraction',
  utility: 'Utility', forget_quality: 'Forget quality', depth: 'Depth', leakage: 'Leakage', membership: 'Membership inference', privacy: 'Privacy', representation: 'Representation',
};

function mountMetrics() {
  const measured = MEASURED;
  if (!measured.length) return;
  const body = section('metrics');
  const controls = h('div', { class: 'controls' });
  const box = h('div', { class: 'wrap tall' });
  const folded = h('div');
  body.append(controls, box, folded);
  const draw = () => {
    const chosen = current.run()?.info;
    const model = measured.includes(chosen) ? chosen : null;
    const anchors = ['full', 'retain'].map((role) => measured.find((one) => one.role === role && one !== model)).filter(Boolean);
    const picked = measured.find((one) => one.label === state.get('with') && one !== model && !anchors.includes(one));
    const own = model ? [model, picked].filter(Boolean) : measured.filter((one) => !anchors.includes(one)).slice(0, 3);
    const columns = [...own, ...anchors];
    refocus(controls, ...[
      !model && chosen && h('span', { class: 'muted' }, bdi(chosen.label), ' was not evaluated: run lensaudit eval. '),
      measured.length > 2 && choice('beside', [['', 'the anchors'], ...measured.filter((one) => one !== model && !anchors.includes(one)).map((one) => [one.label, one.label])], state.get('with'), (other) => state.set({ with: other })),
      h('input', { type: 'search', placeholder: 'Filter metrics', 'aria-label': 'Filter metrics', value: state.get('metric'), oninput: (event) => state.set({ metric: event.target.value }) }),
    ].filter(Boolean));
    refocus(box, metricTable(columns, anchors));
    folded.replaceChildren(...missingMetrics(own.length ? own : anchors));
  };
  state.on(['settings', 'model', 'with', 'theme'], draw);
  state.on(['metric'], () => {
    const wanted = state.get('metric').toLowerCase();
    for (const row of box.querySelectorAll('tr[data-metric]')) row.hidden = !row.dataset.metric.toLowerCase().includes(wanted);
  });
  draw();
}

function metricTable(columns, anchors) {
  const wanted = state.get('metric').toLowerCase();
  const own = columns.filter((model) => !anchors.includes(model));
  const measured = DATA.metric_kinds.filter((kind) => (own.length ? own : columns).some((model) => Number.isFinite(metricOf(model, kind.name))));
  const rank = (family) => (family in FAMILIES ? Object.keys(FAMILIES).indexOf(family) : 99);
  const families = [...new Set(measured.map((kind) => kind.family))].sort((a, b) => rank(a) - rank(b));
  const cell = (model, kind) => {
    const [value, low, high, scored, unscored, reason, told] = model.metrics[kind.name] ?? [];
    if (!Number.isFinite(value)) return h('td', { class: 'num gone', title: reason }, anchors.includes(model) ? '–' : bdi(short(reason ?? 'no value', 90)));
    return h('td', { class: 'num' }, h('b', {}, brief(value)),
      h('small', { class: 'nb' }, Number.isFinite(low) ? `${brief(low)} to ${brief(high)}` : bdi(short(reason ?? 'no interval', 90))),
      scored > 0 && h('small', { class: 'nb' }, unscored ? `${scored} of ${scored + unscored} rows` : `n ${scored}`),
      told && h('small', {}, bdi(told)));
  };
  const row = (kind) => h('tr', { 'data-metric': kind.name, hidden: !kind.name.toLowerCase().includes(wanted) },
    h('td', { title: kind.source }, h('span', { class: 'name' }, bdi(kind.name)), h('small', {}, direction(kind))),
    columns.map((model) => cell(model, kind)), columns.length > 1 && h('td', {}, between(columns, anchors, kind)));
  return h('table', { 'aria-label': 'metrics' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Metric'), columns.map((model) => h('th', { class: 'num', scope: 'col' }, bdi(anchors.includes(model) ? `${model.role} · ${model.label}` : model.label), otherwise(model, columns[0]))),
      columns.length > 1 && h('th', { scope: 'col' }, '0 to 1'))),
    families.map((family) => h('tbody', {}, h('tr', { class: 'family' }, h('th', { colspan: String(columns.length + 2), scope: 'rowgroup' }, FAMILIES[family] ?? family.replaceAll('_', ' '))),
      inOrder(measured.filter((kind) => kind.family === family), splitAndLength).map(row))));
}

// A column that was asked of other rows, or in another way, than the first stands beside it with a word.
function otherwise(model, first) {
  const found = askedOtherwise(model, first);
  return found.length > 0 && h('small', { class: 'otherwise' }, `asked otherwise: ${found.join(', ')}`);
}

// What has no number in any of these models, folded by what it wants; a reason's details are in brackets.
function missingMetrics(models) {
  const roots = new Map();
  for (const kind of DATA.metric_kinds) {
    const found = models.map((model) => model.metrics[kind.name]).filter(Boolean);
    if (!found.length || found.some(([value]) => Number.isFinite(value))) continue;
    const reason = found[0][5] ?? 'no reason was recorded';
    const root = reason.replace(/^(needs [^:]*: )+/s, '').replace(/ \(.*\)$/s, '');
    roots.set(root, [...roots.get(root) ?? [], [kind.name, reason]]);
  }
  if (!roots.size) return [];
  const n = [...roots.values()].flat().length;
  return [h('details', { class: 'missing-metrics' },
    h('summary', {}, `${n} not measured, for ${roots.size === 1 ? 'one reason: ' : `${roots.size} reasons`}`, roots.size === 1 && bdi([...roots.keys()][0])),
    h('ul', { class: 'inner missing' }, [...roots].sort(([, a], [, b]) => b.length - a.length).map(([root, kinds]) => h('li', {}, bdi(root), ': ',
      kinds.map(([name, reason], at) => [at > 0 && ', ', bdi(name, 'name'), ![root, `needs ${name}: ${root}`].includes(reason) && /\(.*\)$/s.test(reason) && [' ', bdi(/\(.*\)$/s.exec(reason)[0])]])))))];
}

// The same values on one line: ● models, ◇ anchors.
function between(columns, anchors, kind) {
  const values = columns.map((model) => metricOf(model, kind.name));
  if (!values.some(Number.isFinite) || values.some((value) => value < 0 || value > 1)) return null;
  const x = linear(0, 1, 6, 114);
  return g('svg', { width: 120, height: 14, 'aria-hidden': 'true' }, g('line', { x1: 6, x2: 114, y1: 7, y2: 7, class: 'axis', 'stroke-width': 2 }),
    columns.map((model, at) => Number.isFinite(values[at]) && (anchors.includes(model)
      ? g('rect', { x: x(values[at]) - 3.6, y: 3.4, width: 7.2, height: 7.2, fill: css('--card'), stroke: css('--muted'), 'stroke-width': 1.5, transform: `rotate(45 ${x(values[at])} 7)` })
      : g('circle', { cx: x(values[at]), cy: 7, r: 4.4, fill: at === 0 ? css('--accent') : css('--s1') }))));
}
