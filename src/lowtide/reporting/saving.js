"use strict";
// What a reader keeps of a page: the numbers of a card as CSV, its picture as PNG.

// Buttons that save the numbers of a card, and the picture of one that has any.
function buildSaving(tools, section, asCsv, card) {
  button(tools, "csv", "CSV", false, () => saveText(`${section.id}.csv`, asCsv()));
  if (card) button(tools, "png", "PNG", false, () => savePicture(section, card));
}

// A file that the page makes itself, for the reader to keep.
function saveLink(name, address) {
  const link = html("a", { href: address, download: name }, document.body);
  link.click();
  link.remove();
}
const saveText = (name, text) =>
  saveLink(name, `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`);

const csvLine = (cells) => cells.map((cell) => {
  const text = cell === undefined || cell === null ? "" : String(cell);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",");

function chartAsCsv(chart) {
  const keys = chart.axes.map((axis) => axis.key);
  const lines = [csvLine(["series", ...keys, "value", "low", "high"])];
  for (const entry of chart.series) {
    entry.y.forEach((value, i) => lines.push(csvLine([entry.name,
      ...keys.map((key) => entry[key]?.[i]), value, entry.low?.[i], entry.high?.[i]])));
  }
  return lines.join("\n") + "\n";
}

function columnsAsCsv(chart) {
  const rows = chart.bins.map((bin) => [bin.label, ...(bin.counts || [bin.count])]);
  return [[chart.axis, ...(chart.names || ["count"])], ...rows].map(csvLine).join("\n") + "\n";
}

function barsAsCsv(section) {
  const rows = section.rows.map((row) => [row.name, row.value, row.text]);
  return [["name", "value", "text"], ...rows].map(csvLine).join("\n") + "\n";
}

// Title and names, which a picture by itself would lack, above it; returns the height they take.
function paintHead(paint, section, card, width) {
  const { color, fontFamily } = getComputedStyle(card);
  const margin = 16;
  let [left, line] = [margin, 50];
  const entries = card.querySelectorAll('.legend [aria-pressed="true"], .legend .name');
  paint.fillStyle = color;
  paint.font = `600 16px ${fontFamily}`;
  paint.fillText(section.title, margin, 26);
  paint.font = `13px ${fontFamily}`;
  for (const entry of entries) {
    const drawn = entry.querySelector("line, rect");
    const isBox = drawn.tagName === "rect";
    const room = width - margin - (isBox ? 18 : 33);
    let text = entry.textContent.trim();
    while (paint.measureText(text).width > room) text = `${text.slice(0, -2)}\u2026`;
    const wide = paint.measureText(text).width + (isBox ? 34 : 50);
    if (left > margin && left + wide > width) [left, line] = [margin, line + 20];
    const key = getComputedStyle(drawn);
    const dashes = key.strokeDasharray.split(/[ ,]+/).map(parseFloat).filter(Number.isFinite);
    paint.lineWidth = isBox ? 12 : 2.5;
    paint.strokeStyle = isBox ? key.fill : key.stroke;
    paint.setLineDash(dashes);
    paint.beginPath();
    paint.moveTo(left, line - 4);
    paint.lineTo(left + (isBox ? 12 : 26), line - 4);
    paint.stroke();
    paint.fillText(text, left + (isBox ? 18 : 33), line);
    left += wide;
  }
  return entries.length ? line + 8 : 36;
}

// The picture as it is seen: styles of the page are written into a copy, which is then painted.
const PAINTED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity",
  "fill-opacity", "font-size", "font-family", "font-style", "text-anchor"];
function savePicture(section, card) {
  const drawn = card.querySelector(".plot svg");
  const copy = drawn.cloneNode(true);
  const sources = drawn.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(sources[i]);
    node.setAttribute("style", PAINTED.map((key) => `${key}:${style.getPropertyValue(key)}`)
      .join(";"));
  });
  const { width, height } = drawn.getBoundingClientRect();
  copy.setAttribute("xmlns", SVG_SPACE);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.addEventListener("load", () => {
    const head = paintHead(html("canvas").getContext("2d"), section, card, width);
    const canvas = html("canvas", { width: 2 * width, height: 2 * (height + head) });
    const paint = canvas.getContext("2d");
    paint.scale(2, 2);
    paint.fillStyle = getComputedStyle(card).backgroundColor;
    paint.fillRect(0, 0, canvas.width, canvas.height);
    paintHead(paint, section, card, width);
    paint.drawImage(image, 0, head, width, height);
    saveLink(`${section.id}.png`, canvas.toDataURL("image/png"));
  });
  const text = new XMLSerializer().serializeToString(copy);
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}
