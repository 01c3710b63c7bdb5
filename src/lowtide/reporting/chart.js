"use strict";
// Curves as SVG, drawn to the width there is: hover or arrow keys read values out, a
// drag zooms in, a double click zooms out. What the reader chose stays through live updates.

const SVG_SPACE = "http://www.w3.org/2000/svg";
const DASHES = ["", "", "7 3", "2 3", "9 3 2 3", "4 4", "1 4", "12 4"];
const MARGIN = { left: 62, right: 16, top: 14, bottom: 34 };

function make(space, name, attributes, parent, text) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const html = (name, attributes, parent, text) => make(null, name, attributes, parent, text);
const svg = (name, attributes, parent, text) => make(SVG_SPACE, name, attributes, parent, text);

function smoothed(values) {
  let state = 0;
  let weight = 0;
  return values.map((value) => {
    state = 0.9 * state + 0.1 * value;
    weight = 0.9 * weight + 0.1;
    return state / weight;
  });
}

function nearest(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}

// What 98 of 100 points stay below; infinity where there are too few to tell.
function usualHigh(series, view) {
  const highs = series.flatMap((entry) => (entry.high || entry.y)
    .filter((_, i) => entry.x[i] >= view[0] && entry.x[i] <= view[1]));
  if (highs.length < 50) return Infinity;
  const usual = highs.sort((a, b) => a - b)[Math.floor(0.98 * (highs.length - 1))];
  return usual > 0 ? usual : Infinity;
}

function yDomain(chart, view, series) {
  let [low, high] = [Infinity, -Infinity];
  for (const entry of series) {
    for (let i = 0; i < entry.y.length; i += 1) {
      if (entry.x[i] < view[0] || entry.x[i] > view[1]) continue;
      low = Math.min(low, entry.low ? entry.low[i] : entry.y[i]);
      high = Math.max(high, entry.high ? entry.high[i] : entry.y[i]);
    }
  }
  if (low > high) [low, high] = [0, 1];
  chart.beyond = null;
  const usual = usualHigh(series, view);
  // One step gone wrong would press the rest flat: it is named at the edge then. A logarithmic
  // scale has room for it.
  if (!chart.state.log && high > 10 * usual) {
    chart.beyond = high;
    high = 1.5 * usual;
  }
  // A budget far above what was used would press the curve flat: it is named at the edge then.
  const near = (chart.lines || []).map((line) => line.y).filter((limit) => limit <= 10 * high);
  if (near.length < (chart.lines || []).length) high *= 1.3;
  high = Math.max(high, ...near);
  if (chart.state.log && low > 0) return [low / 1.05, high * 1.05];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return chart.from_zero ? [Math.min(0, low), high + pad] : [low - pad, high + pad];
}

// All charts that have a choice share it: a page is read by step or by time.
const SHARED = { axis: 0 };
const axisOf = (chart) => chart.axes[Math.min(SHARED.axis, chart.axes.length - 1)];

function visibleSeries(chart) {
  const axis = axisOf(chart);
  return chart.series
    .map((entry, number) => ({ ...entry, x: entry[axis.key], number }))
    .filter((entry) => entry.x && !chart.state.hidden.has(entry.name) && entry.y.length);
}

function drawFrame(root, chart, x, y, width, height, axis) {
  const [bottom, right] = [height - MARGIN.bottom, width - MARGIN.right];
  const rows = ticksOf(y, height / 48, chart.format);
  labelsOf(rows, chart.format).forEach((text, i) => {
    const place = y(rows[i]);
    svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: place, y2: place }, root);
    svg("text", { x: MARGIN.left - 8, y: place + 4, "text-anchor": "end" }, root, text);
  });
  svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, root);
  x.whole = axis.key === "step";
  const label = axis.label;
  const limit = right - label.length * 7 - 18;
  const ticks = axis.format ? ticksOf(x, width / 85, axis.format) : [];
  labelsOf(ticks, axis.format).forEach((text, i) => {
    const place = x(ticks[i]);
    if (place > limit && place < right + 40 && limit > MARGIN.left + 60) return;
    svg("text", { class: "tick", x: place, y: bottom + 19, "text-anchor": "middle" }, root, text);
  });
  svg("text", { x: right, y: bottom + 19, "text-anchor": "end", "font-style": "italic" }, root,
    label);
}

function drawBackdrop(root, chart, x, y, width, height, axis) {
  const [bottom, right] = [height - MARGIN.bottom, width - MARGIN.right];
  if (axis.key !== "time") return;
  (chart.phases || []).forEach((phase, number) => {
    const begin = Math.max(x(phase.begin), MARGIN.left);
    const end = Math.min(x(phase.end), right);
    if (end <= begin) return;
    if (number % 2 === 0) {
      svg("rect", { class: "phase", x: begin, y: MARGIN.top, width: end - begin,
        height: bottom - MARGIN.top }, root);
    }
    if (end - begin > phase.name.length * 7 + 8) {
      svg("text", { x: begin + 5, y: MARGIN.top + 42 }, root, phase.name);
    }
  });
  for (const cut of chart.cuts || []) {
    const place = x(cut.time);
    if (place < MARGIN.left || place > right) continue;
    const line = svg("line", { class: "cut", x1: place, x2: place, y1: MARGIN.top, y2: bottom },
      root);
    svg("title", {}, line, cut.text);
  }
}

function drawLimits(root, chart, y, width) {
  if (chart.beyond !== null) {
    svg("text", { class: "limit-text", x: MARGIN.left + 4, y: MARGIN.top + 8 }, root,
      `up to ${FORMATS[chart.format](chart.beyond)}, above the picture`);
  }
  for (const line of chart.lines || []) {
    const inside = line.y <= y.domain[1];
    const place = inside ? y(line.y) : MARGIN.top;
    if (inside) {
      svg("line", { class: "limit", x1: MARGIN.left, x2: width - MARGIN.right, y1: place,
        y2: place }, root);
    }
    svg("text", { class: "limit-text", x: width - MARGIN.right - 4, y: place + 14,
      "text-anchor": "end" }, root, inside ? line.text : `${line.text}, above the picture`);
  }
}

function drawSeries(root, chart, entry, x, y) {
  const color = `var(--c${entry.number % 8})`;
  const at = (i, value) => `${x(entry.x[i]).toFixed(1)} ${y(value).toFixed(1)}`;
  const path = (values) => "M" + values.map((value, i) => at(i, value)).join("L");
  const name = { "data-series": entry.name };
  if (entry.y.length === 1) {
    svg("circle", { ...name, cx: x(entry.x[0]), cy: y(entry.y[0]), r: 4, fill: color }, root);
    return;
  }
  if (entry.low) {
    const back = entry.low.map((value, i) => at(i, value)).reverse().join("L");
    svg("path", { d: `${path(entry.high)}L${back}Z`, fill: color, "fill-opacity": 0.16 }, root);
  }
  const smooth = chart.state.smooth && !entry.dots;
  const style = { fill: "none", stroke: color, "stroke-linejoin": "round" };
  if (smooth) {
    svg("path", { ...style, d: path(entry.y), "stroke-opacity": 0.3, "stroke-width": 1 }, root);
  }
  svg("path", { ...name, ...style, d: path(smooth ? smoothed(entry.y) : entry.y),
    "stroke-width": entry.dots ? 2 : 1.6,
    "stroke-dasharray": DASHES[entry.number % DASHES.length] }, root);
  if (entry.dots && entry.y.length <= 60) {
    entry.y.forEach((value, i) => svg("circle", { cx: x(entry.x[i]), cy: y(value), r: 2.6,
      fill: color }, root));
  }
}

function drawTip(plot, chart, series, x, y, place, width, height, axis, cross) {
  const wanted = x.invert(Math.min(Math.max(place, MARGIN.left), width - MARGIN.right));
  const near = series.map((entry) => nearest(entry.x, wanted));
  const anchor = series[0].x[near[0]];
  cross.replaceChildren();
  svg("line", { class: "cross", x1: x(anchor), x2: x(anchor), y1: MARGIN.top,
    y2: height - MARGIN.bottom }, cross);
  plot.querySelector(".tip")?.remove();
  const tip = html("div", { class: "tip", role: "status" }, plot);
  html("div", {}, tip, axis.key === "step" ? `step ${Math.round(anchor).toLocaleString("en")}`
    : FORMATS[axis.format](anchor));
  const table = html("table", {}, tip);
  series.forEach((entry, k) => {
    const i = near[k];
    svg("circle", { cx: x(entry.x[i]), cy: y(entry.y[i]), r: 4,
      fill: `var(--c${entry.number % 8})` }, cross);
    const row = html("tr", {}, table);
    html("td", { style: `color: var(--c${entry.number % 8})` }, row, entry.name);
    html("td", {}, row, FORMATS[chart.format](entry.y[i]));
    if (entry.low && entry.low[i] !== entry.high[i]) {
      html("td", {}, row,
        `${FORMATS[chart.format](entry.low[i])} to ${FORMATS[chart.format](entry.high[i])}`);
    }
    for (const mark of chart.marks || []) {
      if (mark.series === entry.name && mark[axis.key] === entry.x[i]) {
        html("div", { class: "alarm" }, tip, mark.text);
      }
    }
  });
  const left = x(anchor);
  tip.style.left = left < width / 2 ? `${left + 14}px` : "auto";
  tip.style.right = left < width / 2 ? "auto" : `${width - left + 14}px`;
  return anchor;
}

function listen(root, plot, chart, series, x, y, width, height, axis, redraw) {
  const cross = svg("g", {}, root);
  const place = (event) => event.clientX - root.getBoundingClientRect().left;
  const show = (at) => drawTip(plot, chart, series, x, y, at, width, height, axis, cross);
  const hide = () => { cross.replaceChildren(); plot.querySelector(".tip")?.remove(); };
  let start = null;
  let box = null;
  let here = null;
  root.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) start = place(event);
  });
  root.addEventListener("pointermove", (event) => {
    here = show(place(event));
    if (start === null || Math.abs(place(event) - start) < 5) return;
    box = box || svg("rect", { class: "zoom", y: MARGIN.top,
      height: height - MARGIN.top - MARGIN.bottom }, root);
    box.setAttribute("x", Math.min(start, place(event)));
    box.setAttribute("width", Math.abs(place(event) - start));
  });
  root.addEventListener("pointerup", (event) => {
    if (box) {
      chart.state.zoom = [start, place(event)].sort((a, b) => a - b).map(x.invert);
      redraw();
    }
    start = null;
  });
  root.addEventListener("pointerleave", () => { hide(); start = null; box?.remove(); box = null; });
  root.addEventListener("dblclick", () => { chart.state.zoom = null; redraw(); });
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const xs = series[0].x;
    const i = here === null ? xs.length - 1 : nearest(xs, here) + move;
    here = show(x(xs[Math.min(Math.max(i, 0), xs.length - 1)]));
  });
}

function drawPlot(plot, chart, redraw) {
  const series = visibleSeries(chart);
  const width = Math.max(plot.clientWidth, 260);
  const height = chart.height || 220;
  const axis = axisOf(chart);
  const last = series.map((entry) => `${entry.name} ${FORMATS[chart.format](entry.y.at(-1))}`);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0,
    "aria-label": `${chart.title}: ${last.join(", ")}` }, plot);
  if (!series.length) {
    svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, root,
      "Every curve is switched off.");
    return;
  }
  const ends = series.flatMap((entry) => [entry.x[0], entry.x.at(-1)]);
  let view = chart.state.zoom || [Math.min(...ends), Math.max(...ends)];
  if (view[0] === view[1]) view = [Math.max(view[0] - 1, 0), view[1] + 1];
  const domain = yDomain(chart, view, series);
  const x = makeScale(view, [MARGIN.left, width - MARGIN.right], false);
  const y = makeScale(domain, [height - MARGIN.bottom, MARGIN.top],
    chart.state.log && domain[0] > 0);
  const id = `clip-${chart.id}`;
  const rim = chart.state.zoom ? 0 : 5;  // dots at the edges are whole, zoomed curves end there
  svg("rect", { x: MARGIN.left - rim, y: 0, width: width - MARGIN.left - MARGIN.right + 2 * rim,
    height: height - MARGIN.bottom + rim }, svg("clipPath", { id }, svg("defs", {}, root)));
  drawBackdrop(root, chart, x, y, width, height, axis);
  drawFrame(root, chart, x, y, width, height, axis);
  const curves = svg("g", { "clip-path": `url(#${id})` }, root);
  for (const entry of series) drawSeries(curves, chart, entry, x, y);
  for (const mark of chart.marks || []) {
    if (chart.state.hidden.has(mark.series)) continue;
    const place = x(mark[axis.key]);
    if (place < MARGIN.left - 1 || place > width - MARGIN.right + 1) continue;
    const ring = svg("circle", { class: "ring", cx: place, cy: y(mark.y), r: 7 }, root);
    svg("title", {}, ring, mark.text);
  }
  drawLimits(root, chart, y, width);
  listen(root, plot, chart, series, x, y, width, height, axis, redraw);
}
