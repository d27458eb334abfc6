// What on an open page cannot be read: crushed text, broken numbers, columns that are hidden unsaid.
(() => {
  const found = new Set();
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const style = (node) => getComputedStyle(node);
  const shown = (node) => node.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true });
  const name = (node) => [node.closest('section, header, footer')?.id, node.tagName.toLowerCase(), ...node.classList].filter(Boolean).join(' ');
  const tell = (what, node, text) => found.add(`${what}: ${name(node)}: ${text.trim().replace(/\s+/g, ' ').slice(0, 60)}`);
  const lines = (range) => new Set([...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.bottom / 6))).size;
  const block = (node) => { let at = node; while (['inline', 'contents'].includes(style(at).display)) at = at.parentElement; return at; };
  const range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest('script, style, noscript, select, svg, #tip, .skip') || !shown(parent)) continue;
    range.selectNodeContents(node);
    const box = block(parent);
    const inner = box.clientWidth - parseFloat(style(box).paddingLeft) - parseFloat(style(box).paddingRight);
    if (lines(range) > 2 && inner < 8 * rem) tell(`crushed to ${Math.round(inner)} px`, parent, node.data);
    for (const { index, 0: number } of node.data.matchAll(/(?<![\p{L}\d_/.-])[+−-]?\d[\d.,]*\d(?![\p{L}\d_/-])/gu)) {
      range.setStart(node, index);
      range.setEnd(node, index + number.length);
      if (lines(range) > 1) tell('broken number', parent, number);
    }
  }
  for (const node of document.body.querySelectorAll('*')) {
    if (node.closest('svg, select, input, .skip') || !shown(node) || node.scrollWidth <= node.clientWidth + 1) continue;
    const { overflowX, textOverflow, backgroundAttachment, maskImage } = style(node);
    if (overflowX === 'visible' || textOverflow === 'ellipsis') continue;
    // a shade under the content shows where a cell lets it through
    const shaded = backgroundAttachment.includes('local') && [...node.querySelectorAll('td, a')].some((one) => /(,|\/) 0?(\.\d+)?\)$/.test(style(one).backgroundColor));
    const sign = overflowX !== 'hidden' && (shaded || maskImage !== 'none');
    if (!sign) tell(`hides ${node.scrollWidth - node.clientWidth} px unsaid`, node, node.textContent);
  }
  for (const text of document.querySelectorAll('svg text')) {
    const [own, all] = [text, text.closest('svg')].map((one) => one.getBoundingClientRect());
    if (own.width && (own.right > all.right + 2 || own.left < all.left - 2)) tell('cut at the edge', text.closest('svg').parentElement, text.textContent);
  }
  const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (over > 1) found.add(`page: ${over} px wider than the window`);
  return [...found].sort();
})()
