// Output metrics of the chosen model, beside another and the anchors.
const DIRECTIONS = { knows: '↑ knows', forgot: '↑ forgot' };

function mountMetrics() {
  const measured = MEASURED;
  if (!measured.length) return;
  const body = section('metrics');
  const controls = h('div', { class: 'controls' });
  const box = h('div', { class: 'wrap tall' });
  body.append(controls, box);
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
  const families = [...new Set(DATA.metric_kinds.map((kind) => kind.family))];
  const there = (kind) => columns.some((model) => model.metrics[kind.name]);
  const cell = (model, kind) => {
    const found = model.metrics[kind.name];
    if (!found) return h('td', { class: 'num gone' }, '–');
    const [value, low, high, scored, unscored, reason] = found;
    if (!Number.isFinite(value)) return h('td', { class: 'num' }, h('span', { class: 'gone' }, bdi(short(reason ?? 'no value', 90))));
    const note = unscored ? `${scored} of ${scored + unscored}` : '';
    return h('td', { class: 'num', title: note && `${note} rows scored` }, brief(value),
      Number.isFinite(low) ? h('div', { class: 'gone' }, `${brief(low)} to ${brief(high)}`) : reason && h('div', { class: 'gone' }, bdi(short(reason, 90))), note && h('div', { class: 'gone' }, note));
  };
  return h('table', { 'aria-label': 'metrics' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Metric'), h('th', { scope: 'col' }, 'A high value'), columns.map((model) => h('th', { class: 'num', scope: 'col' }, bdi(model.label))),
      columns.length > 1 && h('th', { scope: 'col' }, '0 to 1'))),
    families.map((family) => {
      const kinds = DATA.metric_kinds.filter((kind) => kind.family === family && there(kind));
      return kinds.length > 0 && h('tbody', {}, h('tr', { class: 'family' }, h('th', { colspan: String(columns.length + 3), scope: 'rowgroup' }, family.replaceAll('_', ' '))),
        kinds.map((kind) => h('tr', { 'data-metric': kind.name, hidden: !kind.name.toLowerCase().includes(wanted) },
          h('td', { title: kind.source }, h('span', { class: 'name' }, bdi(kind.name))),
          h('td', { class: 'arrow' }, DIRECTIONS[kind.high_means] ?? (kind.family === 'aggregate' ? '–' : 'not recorded')),
          columns.map((model) => cell(model, kind)), columns.length > 1 && h('td', {}, between(columns, anchors, kind)))));
    }));
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
