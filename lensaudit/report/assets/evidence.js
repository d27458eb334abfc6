// The evidence matrix: models by views, each number with its interval and its rows.
function mountEvidence() {
  const found = DATA.evidence;
  if (!found) return;
  const body = section('evidence');
  const box = h('div', { class: 'wrap', tabindex: '-1' });
  body.append(box);
  const anchors = ['full', 'retain'].flatMap((role) => found.lines.filter((line) => line.role === role));
  const judged = found.lines.filter((line) => !isAnchor(line));

  const small = (one) => {
    if (Number.isFinite(one.low)) return `${fmt(one.low, 2)} to ${fmt(one.high, 2)}`;
    return one.why ?? '';
  };
  const cell = (line, view) => {
    const one = line.cells[view.id];
    if (!one) return h('span', { class: 'gone' }, '–');
    const beside = [small(one), one.n ? `n ${one.n}` : ''].filter(Boolean).join(' · ');
    return h('span', { title: one.why ?? view.help }, h('b', {}, fmt(one.value, 2)), h('div', { class: 'muted beside' }, bdi(beside)));
  };
  const columns = [
    { id: 'model', title: 'model', value: (line) => line.label, cell: (line) => nameOf(line) },
    ...found.views.map((view) => ({
      id: view.id, title: view.title, help: view.help, num: true,
      value: (line) => line.cells[view.id]?.value, cell: (line) => cell(line, view),
    })),
  ];
  function nameOf(line) {
    const run = current.runs().find((one) => one.model === line.model);
    const label = isAnchor(line) ? [`${line.role} · `, bdi(line.label)] : bdi(line.label);
    return run && !isAnchor(line) ? button(label, () => current.choose(run), { class: 'link' }) : h('span', {}, label);
  }
  const draw = () => {
    const [by, way] = state.get('evidence', 'uds asc').split(' ');
    const table = sortable({
      columns, rows: judged, pinned: anchors, sort: [by, way], label: 'evidence',
      onsort: (id, direction) => state.set({ evidence: `${id} ${direction}` }),
      rowClass: (line) => (current.run() && line.model === current.run().model ? 'chosen' : null),
    });
    refocus(box, table.node);
  };
  state.on(['evidence', 'model', 'settings'], draw);
  draw();
}
