// A table that sorts by click or key; gaps stay at the end in both directions.
function sortable({ columns, rows, pinned = [], sort, onsort, label, rowClass, firstOf }) {
  const [by, direction] = sort;
  const column = columns.find((one) => one.id === by);
  const empty = (value) => value === null || value === undefined || Number.isNaN(value);
  const compare = (a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (empty(x) || empty(y)) return empty(x) - empty(y);
    const order = typeof x === 'string' ? x.localeCompare(String(y)) : x - y;
    return direction === 'desc' ? -order : order;
  };
  const ranked = column ? [...rows].sort(compare) : rows;
  const sorted = firstOf ? ranked.filter((row, at) => ranked.findIndex((one) => firstOf(one) === firstOf(row)) === at) : ranked;
  const head = columns.map((one) => h('th', {
    scope: 'col', class: one.num ? 'num' : null,
    'aria-sort': column && one.id === column.id ? (direction === 'desc' ? 'descending' : 'ascending') : null,
  }, one.value ? button(one.title, () => onsort(one.id, one.id === by && direction === 'asc' ? 'desc' : 'asc'), { title: one.help, 'data-sort': one.id }) : one.title));
  const body = [...pinned.map((row) => [row, true]), ...sorted.map((row) => [row, false])].map(([row, isPinned]) => h('tr', {
    class: isPinned ? 'anchor' : rowClass ? rowClass(row) : null,
  }, columns.map((one) => h('td', { class: one.num ? 'num' : null }, one.cell(row)))));
  return { sorted, node: h('table', { 'aria-label': label }, h('thead', {}, h('tr', {}, head)), h('tbody', {}, body)) };
}

// A table of plain records: the columns are their fields.
function recordTable(rows, { name, first = [], label, titles = {} }) {
  const fields = [...new Set([...first.filter((f) => rows.some((row) => f in row)), ...rows.flatMap(Object.keys)])]
    .filter((field) => rows.some((row) => row[field] !== null && row[field] !== ''));
  const isNumber = (field) => rows.every((row) => row[field] === null || row[field] === undefined || typeof row[field] === 'number');
  const box = h('div', { class: 'wrap free' });
  const draw = () => {
    const [by, direction] = state.get(name, ' ').split(' ');
    const columns = fields.map((field) => ({
      id: field, title: titles[field] || field.replaceAll('_', ' '), num: isNumber(field), value: (row) => row[field],
      cell: (row) => (typeof row[field] === 'number' ? brief(row[field]) : bdi(row[field] ?? '–')),
    }));
    const table = sortable({ columns, rows, sort: [by, direction], onsort: (id, way) => state.set({ [name]: `${id} ${way}` }), label });
    refocus(box, table.node);
  };
  state.on([name], draw);
  draw();
  return box;
}

// Replace what a box holds and keep the keyboard and the scroll where they were.
function refocus(box, ...nodes) {
  const reachable = () => [...box.querySelectorAll('button, select, input, summary, [tabindex="0"]')];
  const name = (one) => one.dataset.sort || one.dataset.name || one.getAttribute('aria-label') || one.textContent;
  const focused = box.contains(document.activeElement) ? document.activeElement : null;
  const [was, at] = focused ? [name(focused), reachable().indexOf(focused)] : [null, -1];
  const scroll = [box.scrollTop, box.scrollLeft];
  box.replaceChildren(...nodes);
  [box.scrollTop, box.scrollLeft] = scroll;
  if (!focused) return;
  const again = reachable().find((one) => name(one) === was) ?? reachable()[at];
  if (again) again.focus({ preventScroll: true });
}
