"use strict";
// Builds the page from its data, and again whenever a live page hears of news.

const STATES = new Map();

function stateOf(id) {
  if (!STATES.has(id)) {
    STATES.set(id, { hidden: new Set(), zoom: null, log: false, smooth: false, open: false });
  }
  return STATES.get(id);
}

function buildHead(data) {
  const head = document.getElementById("head");
  head.replaceChildren();
  html("div", { class: "kind" }, head, `lowtide ${data.kind}`);
  const titles = html("div", { class: "titles" }, head);
  html("h1", {}, titles, data.title);
  if (data.badge) {
    html("span", { class: `badge ${data.badge.tone}`, id: "badge" }, titles, data.badge.text);
  }
  if (data.subtitle) html("p", { class: "subtitle" }, head, data.subtitle);
  const tiles = html("div", { class: "tiles" }, head);
  for (const tile of data.tiles) {
    const box = html("div", { class: "tile" }, tiles);
    html("div", { class: "label" }, box, tile.label);
    const long = tile.value.length > 10 ? " long" : "";
    html("div", { class: `value ${tile.tone}${long}` }, box, tile.value);
    if (tile.note) html("div", { class: "note" }, box, tile.note);
  }
  arrangeTiles();
}

// As many columns as there is room for, but rows of equal length: none holds a lone tile.
function arrangeTiles() {
  const tiles = document.querySelector(".tiles");
  const room = Math.max(1, Math.floor((tiles.clientWidth + 12) / 157));
  const rows = Math.ceil(tiles.children.length / room);
  const columns = rows > 1 ? Math.ceil(tiles.children.length / rows)
    : Math.max(tiles.children.length, Math.min(room, 4));
  tiles.style.setProperty("--columns", columns);
}

function button(parent, key, text, pressed, act) {
  const node = html("button", { type: "button", "data-key": key, "aria-pressed": pressed }, parent,
    text);
  node.addEventListener("click", act);
  return node;
}

function buildTools(top, chart, redraw) {
  const state = chart.state;
  const tools = html("div", { class: "tools" }, top);
  if (state.zoom) {
    button(tools, "reset", "whole", false, () => { state.zoom = null; redraw("reset"); });
  }
  if (chart.smooth) {
    button(tools, "smooth", "smooth", state.smooth, () => {
      state.smooth = !state.smooth;
      redraw("smooth");
    });
  }
  if (chart.log) {
    button(tools, "log", "log scale", state.log, () => { state.log = !state.log; redraw("log"); });
  }
  if (chart.choose_axis) {
    chart.axes.forEach((axis, number) => button(tools, `axis-${axis.key}`, `by ${axis.label}`,
      SHARED.axis === number, () => {
        SHARED.axis = number;
        for (const other of STATES.values()) other.zoom = null;
        for (const card of document.querySelectorAll("section")) card.redraw?.();
        redraw(`axis-${axis.key}`);
      }));
  }
  buildSaving(tools, chart, () => chartAsCsv(chart), top.parentElement);
}

function buildLegend(card, chart, redraw) {
  if (chart.series.length < 2) return;
  const legend = html("div", { class: "legend" }, card);
  chart.series.forEach((entry, number) => {
    const shown = !chart.state.hidden.has(entry.name);
    const node = button(legend, `series-${entry.name}`, "", shown, () => {
      if (shown) chart.state.hidden.add(entry.name); else chart.state.hidden.delete(entry.name);
      redraw(`series-${entry.name}`);
    });
    const key = svg("svg", { width: 26, height: 8, "aria-hidden": true }, node);
    svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: `var(--c${number % 8})`, "stroke-width": 2.5,
      "stroke-dasharray": DASHES[number % DASHES.length] }, key);
    html("span", {}, node, entry.name);
  });
}

function buildTop(card, section) {
  const top = html("div", { class: "bar-top" }, card);
  html("h2", {}, top, section.title);
  if (section.note) html("span", { class: "note" }, top, section.note);
  return top;
}

function buildChart(card, chart) {
  chart.state = stateOf(chart.id);
  const redraw = (focus) => {
    card.replaceChildren();
    const top = buildTop(card, chart);
    if (!chart.series.length) { html("p", { class: "empty" }, card, chart.empty); return; }
    buildTools(top, chart, redraw);
    buildLegend(card, chart, redraw);
    drawPlot(html("div", { class: "plot" }, card), chart, redraw);
    if (focus) card.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
  };
  card.redraw = redraw;
  redraw();
}

function buildNames(card, names) {
  const legend = html("div", { class: "legend" }, card);
  names.forEach((name, number) => {
    const box = html("span", { class: "name" }, legend);
    const key = svg("svg", { width: 12, height: 12, "aria-hidden": true }, box);
    svg("rect", { width: 12, height: 12, fill: `var(--c${number % 8})` }, key);
    html("span", {}, box, ` ${name}`);
  });
}

function buildColumns(card, chart) {
  card.redraw = () => {
    card.replaceChildren();
    const top = buildTop(card, chart);
    if (!chart.bins.length) { html("p", { class: "empty" }, card, chart.empty); return; }
    buildSaving(html("div", { class: "tools" }, top), chart, () => columnsAsCsv(chart), card);
    if (chart.names) buildNames(card, chart.names);
    drawColumns(html("div", { class: "plot" }, card), chart);
  };
  card.redraw();
}

function buildTable(card, section) {
  let place = card;
  if (section.folded) {
    const state = stateOf(section.id);
    place = html("details", state.open ? { open: "" } : {}, card);
    place.addEventListener("toggle", () => { state.open = place.open; });
    html("summary", {}, place, section.title);
  } else {
    const top = buildTop(card, section);
    if (section.sort_by && section.rows.length) {
      const rows = () => [section.columns, ...sortedRows(section).map((i) => section.sort_by[i])];
      buildSaving(html("div", { class: "tools" }, top), section,
        () => rows().map(csvLine).join("\n") + "\n");
    }
  }
  if (!section.rows.length) { html("p", { class: "empty" }, place, section.empty); return; }
  const kind = section.sort_by ? "data sorted" : "data";
  const table = html("table", { class: kind }, html("div", { class: "scroll" }, place));
  const isNumber = section.columns.map((_, i) =>
    section.rows.every((row) => row[i] === "" || /^[-+]?[\d.,]+/.test(row[i])) &&
    section.rows.some((row) => row[i] !== ""));
  const cell = (row, name, text, i) =>
    html(name, isNumber[i] && !section.folded ? { class: "right" } : {}, row, text);
  const head = html("tr", {}, html("thead", {}, table));
  const body = html("tbody", {}, table);
  const fill = () => {
    head.replaceChildren();
    body.replaceChildren();
    section.columns.forEach((text, i) => {
      const node = cell(head, "th", section.sort_by ? "" : text, i);
      if (section.sort_by) sortHandle(node, section, text, i, fill);
    });
    for (const number of sortedRows(section)) {
      const row = html("tr", {}, body);
      section.rows[number].forEach((text, i) => {
        const node = cell(row, "td", text, i);
        if (text === "forgetting") node.className = "bad";
      });
    }
  };
  fill();
}

function sortHandle(cell, section, text, column, fill) {
  const state = stateOf(section.id);
  const order = state.column === column ? (state.falls ? "descending" : "ascending") : "none";
  cell.setAttribute("aria-sort", order);
  const arrow = { ascending: " \u2191", descending: " \u2193", none: "" }[order];
  button(cell, `sort-${column}`, text + arrow, order !== "none", () => {
    state.falls = state.column === column && !state.falls;
    state.column = column;
    fill();
  });
}

// By the values behind the texts; what is missing comes last in either order.
function sortedRows(section) {
  const rows = section.rows.map((_, i) => i);
  const { column, falls } = stateOf(section.id);
  if (!section.sort_by || column === undefined) return rows;
  const value = (row) => section.sort_by[row][column];
  return rows.sort((a, b) => {
    if (value(a) === null || value(b) === null) return (value(a) === null) - (value(b) === null);
    const before = value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a - b;
    return falls ? -before : before;
  });
}

// Files of one folder are told apart by what comes after it.
function sharedFolder(names) {
  if (names.length < 2) return 0;
  const first = names[0];
  let length = 0;
  while (length < first.length && names.every((name) => name[length] === first[length])) length += 1;
  return first.lastIndexOf("/", length - 1) + 1;
}

function buildBars(card, section) {
  const top = buildTop(card, section);
  if (!section.rows.length) { html("p", { class: "empty" }, card, section.empty); return; }
  buildSaving(html("div", { class: "tools" }, top), section, () => barsAsCsv(section));
  const rows = html("div", { class: "rows" }, card);
  const most = Math.max(...section.rows.map((row) => row.value)) || 1;
  const shared = sharedFolder(section.rows.map((row) => row.name));
  for (const row of section.rows) {
    html("div", { class: "name", title: row.name }, rows, row.name.slice(shared));
    const track = html("div", { class: "track" }, rows);
    const fill = html("span", { class: "fill", "data-bar": row.name }, track);
    fill.style.width = `${(100 * row.value) / most}%`;
    fill.style.background = `var(--c${section.color || 0})`;
    html("div", { class: "amount" }, rows, row.text);
    if (row.more) html("div", { class: "more" }, rows, row.more);
  }
}

function buildSamples(card, section) {
  buildTop(card, section);
  if (!section.items.length) { html("p", { class: "empty" }, card, section.empty); return; }
  const grid = html("div", { class: "samples" }, card);
  for (const item of section.items) {
    const box = html("div", { class: "sample" }, grid);
    html("div", { class: "step" }, box, `step ${item.step.toLocaleString("en")}`);
    html("pre", {}, box, item.text);
  }
}

function buildTokens(card, section) {
  buildTop(card, section);
  const grid = html("div", { class: "samples pairs" }, card);
  for (const item of section.items) {
    const box = html("div", { class: "sample" }, grid);
    html("div", { class: "step" }, box, item.name);
    const text = html("pre", { class: "tokens" }, box);
    item.tokens.forEach((token, i) => html("span", { class: `t${i % 4}` }, text, token));
  }
}

const BUILDERS = { chart: buildChart, columns: buildColumns, table: buildTable, bars: buildBars,
  samples: buildSamples, tokens: buildTokens };

function buildPage(data) {
  buildHead(data);
  const main = document.getElementById("main");
  main.replaceChildren();
  for (const section of data.sections) {
    const card = html("section", { class: section.width || "half", id: section.id }, main);
    BUILDERS[section.type](card, section);
  }
}

function redrawOnResize() {
  let width = document.body.clientWidth;
  window.addEventListener("resize", () => requestAnimationFrame(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    arrangeTiles();
    for (const card of document.querySelectorAll("section")) card.redraw?.();
  }));
}

function keepLive(seconds) {
  let version = "";
  let failures = 0;
  const isBusy = () => document.querySelector(".tip, rect.zoom") !== null;
  const ask = async () => {
    if (!isBusy()) {
      try {
        const answer = await fetch(`data.json?have=${version}`, { cache: "no-store" });
        if (answer.status === 200) {
          version = answer.headers.get("ETag") || "";
          buildPage(await answer.json());
        }
        failures = 0;
      } catch {
        failures += 1;
        const badge = document.getElementById("badge");
        badge.className = "badge warn";
        badge.textContent = "lowtide report --watch has ended";
        if (failures >= 3) return;
      }
    }
    setTimeout(ask, 1000 * seconds);
  };
  setTimeout(ask, 1000 * seconds);
}

buildPage(JSON.parse(document.getElementById("data").textContent));
redrawOnResize();
if (document.body.dataset.live) keepLive(Number(document.body.dataset.live));
