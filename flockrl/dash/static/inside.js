// What goes on inside of an agent at one step, as elements.

import { el, number, svg } from "./dom.js";

// The colours of numbers above 0 and below are those of all pictures; the film tells them. White for 0, and never so dark
// that a number in it could not be read.
export function tint(colors, value, scale) {
  const part = 0.6 * Math.min(Math.abs(value) / (scale || 1), 1);
  return `rgb(${colors[value < 0 ? "below" : "above"].map((c) => Math.round(255 + (c - 255) * part)).join(",")})`;
}

export function cells(colors, values, scales) {
  return el("div", { className: "cells" }, values.map((x, k) => el("span", { title: `number ${k}`, style: { backgroundColor: tint(colors, x, scales[k]) } }, Math.abs(x) < 5e-4 ? "0" : number(x, 3))));
}

export function bars(chances, action) {
  if (chances.shares) return chances.shares.map((shares, k) => el("div", { className: "bars" }, shares.flatMap((share, i) => [
    el("span", { className: i === action[k] ? "chosen" : "" }, `${i === action[k] ? "▸ " : ""}${chances.shares.length > 1 ? `choice ${k}: ` : ""}action ${i}${chances.legal && chances.shares.length === 1 && !chances.legal[i] ? " (not legal)" : ""}`),
    el("div", {}, el("i", { style: { width: `${100 * share}%` } })), el("span", {}, `${Math.round(100 * share)} %`)])));
  return el("table", { className: "matrix" }, el("thead", {}, el("tr", {}, ["number", "taken", "mean", "deviation"].map((name) => el("th", {}, name)))),
    el("tbody", {}, chances.mean.map((mean, k) => el("tr", {}, [k, action[k], mean, chances.deviation[k]].map((x) => el("th", {}, number(x, 3)))))));
}

// own: whether the diagonal says something. most: what has the full colour.
export function matrix(colors, names, values, agent, own, most) {
  return el("div", { className: "scroll" }, el("table", { className: "matrix" },
    el("thead", {}, el("tr", {}, el("th", {}, "listener ↓ speaker →"), names.map((name) => el("th", {}, name)))),
    el("tbody", {}, values.map((row, i) => el("tr", { className: i === agent ? "on" : "" }, el("th", {}, names[i]),
      row.map((x, j) => el("td", { style: { backgroundColor: i === j && !own ? "#fff" : tint(colors, x, most) } }, i === j && !own ? "" : x < 5e-4 ? "0" : x.toFixed(3))))))));
}

// The agent's values over the episode, and where it is now. Steps without a value leave a gap.
export function curve(values, t) {
  const known = values.filter((x) => x !== null), low = Math.min(...known), high = Math.max(...known);
  const wide = 460, tall = 70, left = 56, flat = high === low;
  const x = (k) => left + (wide - left - 6) * (values.length > 1 ? k / (values.length - 1) : 0.5), y = (v) => 8 + (tall - 16) * (flat ? 0.5 : 1 - (v - low) / (high - low));
  const lines = [[]];
  values.forEach((v, k) => (v === null ? lines.push([]) : lines.at(-1).push(`${x(k).toFixed(1)},${y(v).toFixed(1)}`)));
  return svg("svg", { class: "curve", viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Values over the episode, from ${number(low, 3)} to ${number(high, 3)}` },
    [...new Set([high, low])].map((v) => svg("text", { x: left - 6, y: y(v) + 4 }, number(v, 3))),
    low < 0 && high > 0 ? svg("line", { class: "zero", x1: left, x2: wide - 6, y1: y(0), y2: y(0) }) : null,
    lines.filter((line) => line.length).map((line) => svg("polyline", { points: line.join(" ") })),
    values[t] === null ? null : svg("circle", { cx: x(t), cy: y(values[t]), r: 4 }));
}

// Agents on a ring. A line leads from each speaker to a listener, the thicker the more of its attention it gets; those of
// the agent that is followed stand out.
export function ring(names, weights, agent, alive) {
  const size = 220, middle = size / 2, radius = 80, n = names.length, disc = Math.max(5, Math.min(13, 150 / n));
  const at = (i) => [middle + radius * Math.sin((2 * Math.PI * i) / n), middle - radius * Math.cos((2 * Math.PI * i) / n)];
  const lines = weights.flatMap((row, i) => row.map((x, j) => [x, i, j])).filter(([x, i, j]) => i !== j && x >= 0.02).sort((a, b) => (a[1] === agent) - (b[1] === agent));
  return svg("svg", { class: "ring", viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" },
    lines.map(([x, i, j]) => svg("line", { class: i === agent ? "mine" : "", x1: at(j)[0], y1: at(j)[1], x2: at(i)[0], y2: at(i)[1], "stroke-width": (0.5 + 7 * x).toFixed(2) }, svg("title", {}, `${names[i]} attends to ${names[j]}: ${x.toFixed(3)}`))),
    names.map((name, i) => svg("g", { class: `${i === agent ? "on" : ""} ${alive[i] ? "" : "gone"}` }, svg("title", {}, name), svg("circle", { cx: at(i)[0], cy: at(i)[1], r: disc }), svg("text", { x: at(i)[0], y: at(i)[1] }, String(i)))));
}
