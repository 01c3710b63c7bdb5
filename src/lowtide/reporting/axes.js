"use strict";
// Numbers as people read them, and axes with round ones: from half a second to months.

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

// Each takes a number and how many digits tell it from its neighbours.
const FORMATS = {
  number(value, digits = 4) {
    if (value === 0) return "0";
    if (Math.abs(value) < 0.01) {
      return value.toExponential(digits - 2).replace(/\.?0+e/, "e");
    }
    return Math.abs(value) >= 1e5 ? FORMATS.count(value, digits)
      : trim(value.toPrecision(digits));
  },
  count(value, digits = 3) {
    const units = ["", "k", "M", "G", "T", "P", "E"];
    let place = 0;
    while (Math.abs(value) >= 999.5 && place < 6) { value /= 1000; place += 1; }
    return trim(value.toPrecision(Math.max(digits, 3))) + units[place];
  },
  bytes(value, digits = 3) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let place = 0;
    while (Math.abs(value) >= 1023.5 && place < 4) { value /= 1024; place += 1; }
    const text = value >= 1000 && digits < 4 ? value.toFixed(0) : value.toPrecision(digits);
    return trim(text) + " " + units[place];
  },
  // 0.25 s, 12 s, 1:30 (minutes), 5:30:00 (hours), 2 d 6:00
  seconds(value, digits = 3) {
    if (value < 60) return trim(value.toPrecision(value < 10 ? digits : Math.max(digits, 3))) + " s";
    const whole = Math.round(value);
    const pad = (number) => String(number).padStart(2, "0");
    const [days, hours] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600)];
    const [minutes, rest] = [Math.floor((whole % 3600) / 60), whole % 60];
    if (days) return `${days} d` + (hours || minutes ? ` ${hours}:${pad(minutes)}` : "");
    return hours ? `${hours}:${pad(minutes)}:${pad(rest)}` : `${minutes}:${pad(rest)}`;
  },
};

// As few digits as tell all ticks of an axis apart.
function labelsOf(ticks, format) {
  let labels = [];
  for (const digits of [undefined, 4, 5, 6, 8, 10, 12]) {
    labels = ticks.map((tick) => FORMATS[format](tick, digits));
    if (new Set(labels).size === labels.length) break;
  }
  return labels;
}

function niceStep(span, count, format) {
  const rough = span / Math.max(count, 1);
  if (format === "seconds") {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
      43200, 86400, 172800, 432000];
    if (rough > 432000) return 86400 * niceStep(span / 86400, count, "count");
    if (rough > 0.6) return steps.find((step) => step >= rough);
  }
  if (format === "bytes") return 2 ** Math.ceil(Math.log2(Math.max(rough, 1)));
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function ticksOf(scale, count, format) {
  const [low, high] = scale.domain;
  const ticks = [];
  if (scale.log && high / low >= 20) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const factor of high / low < 500 ? [1, 2, 5] : [1]) {
        const tick = factor * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    return ticks;
  }
  let step = niceStep(high - low, count, format);
  if (format === "count" && scale.whole) step = Math.max(1, step);
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  }
  return ticks;
}

function makeScale(domain, range, log) {
  const warp = log ? Math.log : (value) => value;
  const low = warp(domain[0]);
  const span = warp(domain[1]) - low || 1;
  const scale = (value) => range[0] + ((warp(value) - low) / span) * (range[1] - range[0]);
  scale.domain = domain;
  scale.log = log;
  scale.invert = (place) => {
    const value = low + ((place - range[0]) / (range[1] - range[0])) * span;
    return log ? Math.exp(value) : value;
  };
  return scale;
}
