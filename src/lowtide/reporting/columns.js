"use strict";
// Columns as SVG: how many there are of each size, of one thing or of several side by side.

function drawColumns(plot, chart) {
  const width = Math.max(plot.clientWidth, 260);
  const height = chart.height || 230;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": chart.title }, plot);
  const countsOf = (bin) => bin.counts || [bin.count];
  const names = chart.names || [""];
  const most = Math.max(...chart.bins.flatMap(countsOf));
  const y = makeScale([0, most * 1.05 || 1], [height - MARGIN.bottom, MARGIN.top], false);
  const x = makeScale([0, chart.bins.length], [MARGIN.left, width - MARGIN.right], false);
  drawFrame(root, { format: chart.format || "count" }, x, y, width, height,
    { key: "bin", label: chart.axis });
  const bottom = height - MARGIN.bottom;
  const every = Math.ceil((chart.bins.length * 46) / (width - MARGIN.left - MARGIN.right));
  chart.bins.forEach((bin, i) => {
    const group = svg("g", { "data-bin": bin.label }, root);
    const counts = countsOf(bin);
    const texts = counts.map((count, k) => `${names[k] && `${names[k]} `}` +
      count.toLocaleString("en") + (chart.unit || ""));
    svg("title", {}, group, `${bin.text || bin.label}: ${texts.join(", ")}`);
    const wide = (x(i + 1) - x(i) - 2) / counts.length;
    counts.forEach((count, k) => svg("rect", { x: x(i) + 1 + k * wide, width: Math.max(wide, 1),
      y: y(count), height: Math.max(bottom - y(count), count ? 1 : 0),
      fill: `var(--c${bin.over ? 1 : k})` }, group));
    svg("rect", { x: x(i), width: x(i + 1) - x(i), y: MARGIN.top,
      height: bottom - MARGIN.top, fill: "transparent" }, group);
    const room = width - MARGIN.right - chart.axis.length * 7 - 34;
    if (i % every === 0 && x(i + 0.5) < room) {
      svg("text", { x: x(i + 0.5), y: bottom + 19, "text-anchor": "middle" }, root, bin.label);
    }
  });
}
