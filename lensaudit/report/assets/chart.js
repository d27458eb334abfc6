// Small parts of charts: scales, ticks, lines.
const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function ticks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) out.push(Number(value.toPrecision(6)));
  return out;
}

function path(points) {
  let open = false;
  return points.map(([x, y]) => {
    if (!Number.isFinite(x) || !Number.isFinite(y)) { open = false; return ''; }
    const step = `${open ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    open = true;
    return step;
  }).join('');
}

const canvas = (width, height, label, ...children) => g('svg', {
  viewBox: `0 0 ${width} ${height}`, width: '100%', height, preserveAspectRatio: 'xMinYMin meet', role: 'img', 'aria-label': label,
}, ...children);

function yAxis(values, y, left, right, format = brief) {
  return values.map((value) => [
    g('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }),
    g('text', { x: left - 8, y: y(value) + 4, 'text-anchor': 'end' }, format(value)),
  ]);
}

const marker = (colour, text, attributes) => h('span', attributes, h('i', { class: 'mark', style: { background: colour } }), text);
const key = (...entries) => h('div', { class: 'key' }, entries);

// A part of an SVG that can be clicked, tabbed to and pressed.
function press(node, label, act) {
  return fill(node, { tabindex: '0', role: 'button', 'aria-label': label, onclick: act,
    onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); act(); } } }, []);
}

// Whose stream it is that S1 is lost with.
const anchorOf = (where) => (inside(where) ? 'another question’s' : 'retain’s');

const widthOf = (node, least = 320) => Math.max(least, Math.floor(node.getBoundingClientRect().width || 900));

// Text cut to a width by its letters; the whole is in the title.
const short = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
