// Elements from data: every text enters as a text node, so no text can become markup.
const SVG = 'http://www.w3.org/2000/svg';
const $ = (query, root = document) => root.querySelector(query);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === 'value') node.value = value;
    else if (name === 'checked') node.checked = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const g = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const bdi = (text, kind) => h('bdi', { class: kind }, text);

// A plain table in a box of its own: what is too wide scrolls there, and the page stays as it is.
const grid = (label, titles, rows) => h('div', { class: 'wrap plain' }, h('table', { 'aria-label': label }, h('thead', {}, h('tr', {}, titles.map((title, at) => h('th', rows[0]?.cells?.[at]?.classList.contains('num') ? { class: 'num' } : {}, title)))), h('tbody', {}, rows)));

// An exact tie goes to the even digit, as in what the commands print; toFixed takes it away from 0.
const rounded = (value, digits) => {
  const away = value.toFixed(digits);
  const tie = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  return (tie && away.at(-1) % 2 ? (value * (1 - 1e-9)).toFixed(digits) : away).replace(/^-(0\.?0*)$/, '$1');
};
const fmt = (value, digits = 3) => (Number.isFinite(value) ? rounded(value, digits) : '–');
const brief = (value) => {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  const digits = 3 - Math.floor(Math.log10(size || 1));
  return String(Number(digits < 0 ? value.toPrecision(4) : rounded(value, digits)));
};
const percent = (share) => (Number.isFinite(share) ? `${fmt(100 * share, 0)} %` : '–');
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const mean = (values) => {
  const there = values.filter(Number.isFinite);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : NaN;
};

function button(label, onclick, attributes) {
  return h('button', { type: 'button', onclick, ...attributes }, label);
}

function choice(label, options, value, onchange) {
  const list = h('select', { onchange: (event) => onchange(event.target.value) },
    options.map(([key, text]) => h('option', { value: key }, text)));
  list.value = value;
  return h('label', {}, label, list);
}

function segments(label, options, value, onchange) {
  return h('span', { class: 'segments', role: 'group', 'aria-label': label },
    options.map(([key, text]) => button(text, () => onchange(key), { 'aria-pressed': String(key === value) })));
}

// One tooltip for the page, beside the pointer, never under it.
const tip = {
  show(event, ...children) {
    const box = $('#tip');
    box.replaceChildren(...children.flat(Infinity).filter(Boolean));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${clamp(event.clientX + 14, 4, Math.max(4, innerWidth - width - 8))}px`;
    const below = event.clientY + 16;
    box.style.top = `${below + height > innerHeight ? Math.max(4, event.clientY - height - 12) : below}px`;
  },
  hide() { $('#tip').hidden = true; },
};
const hover = (node, lines) => {
  node.addEventListener('pointermove', (event) => tip.show(event, lines()));
  node.addEventListener('pointerleave', tip.hide);
  return node;
};

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h('a', { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function csv(header, rows) {
  const cell = (value) => {
    let text = value === null || value === undefined || Number.isNaN(value) ? '' : String(value);
    if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${[header, ...rows].map((row) => row.map(cell).join(',')).join('\n')}\n`;
}
