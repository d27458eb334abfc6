// Rows by a value; gaps stay at the end in both directions.
function inOrder(rows, value, direction) {
  const empty = (one) => one === null || one === undefined || Number.isNaN(one);
  const compare = ([, x], [, y]) => {
    if (empty(x) || empty(y)) return empty(x) - empty(y);
    const order = typeof x === 'string' ? x.localeCompare(String(y)) : x - y;
    return direction === 'desc' ? -order : order;
  };
  return rows.map((row) => [row, value(row)]).sort(compare).map(([row]) => row);
}

// A table that sorts by click or key.
function sortable({ columns, rows, pinned = [], sort, onsort, label, rowClass }) {
  const [by, direction] = sort;
  const column = columns.find((one) => one.id === by);
  const sorted = column ? inOrder(rows, column.value, direction) : rows;
  const head = columns.map((one) => h('th', {
    scope: 'col', class: one.num ? 'num' : null,
    'aria-sort': column && one.id === column.id ? (direction === 'desc' ? 'descending' : 'ascending') : null,
  }, one.value ? button(one.title, () => onsort(one.id, one.id === by && direction === 'asc' ? 'desc' : 'asc'), { title: one.help, 'data-sort': one.id }) : one.title));
  const body = [...pinned.map((row) => [row, true]), ...sorted.map((row) => [row, false])].map(([row, isPinned]) => h('tr', {
    class: isPinned ? 'anchor' : rowClass ? rowClass(row) : null,
  }, columns.map((one) => h('td', { class: one.num ? 'num' : null }, one.cell(row)))));
  return { sorted, node: h('table', { 'aria-label': label }, h('thead', {}, h('tr', {}, head)), h('tbody', {}, body)) };
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
