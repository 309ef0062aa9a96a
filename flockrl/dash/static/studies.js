// Searches for settings: the best so far, what mattered, and a table of trials.

import { Chart, look } from "./chart.js";
import { ask, el, fill, number, trouble } from "./dom.js";
import { every } from "./tables.js";

const SHOWN = 100;
const STATES = ["complete", "running", "pruned", "failed"];

export function shares(values) {
  return el("div", { className: "bars" }, Object.entries(values).flatMap(([name, share]) => [
    el("span", {}, name), el("div", {}, el("i", { style: { width: `${100 * Math.max(0, Math.min(share, 1))}%` } })), el("span", {}, `${Math.round(100 * share)} %`)]));
}

function trials(found) {
  const sign = found.maximise ? -1 : 1, names = Object.keys(found.searched);
  const order = (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state) || sign * ((a.value ?? 0) - (b.value ?? 0)) || a.number - b.number;
  const rows = [...found.trials].sort(order).slice(0, SHOWN).map((trial) => el("tr", { className: trial.number === found.best ? "best" : "" },
    el("td", { className: "n" }, number(trial.number)), el("td", { className: "state" }, trial.number === found.best ? "★ best" : trial.state),
    el("td", { className: "n" }, number(trial.value)), names.map((name) => el("td", { className: "n" }, setting(trial.settings[name]))),
    el("td", { className: "n wide" }, number(trial.step)), el("td", { className: "name wide" }, trial.why)));
  const more = found.trials.length > SHOWN ? el("p", { className: "faint" }, `The first ${SHOWN} of ${found.trials.length} are listed.`) : null;
  const head = ["trial", "state", found.objective.replace(/^min:/, ""), ...names, "steps", "why"];
  return [el("div", { className: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head.map((name, i) =>
    el("th", { className: `${i === 1 || i === head.length - 1 ? "" : "n"}${i >= head.length - 2 ? " wide" : ""}` }, name)))), el("tbody", {}, rows))), more];
}

function setting(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : typeof value === "number" ? number(value) : String(value);
}

function fresh(told, objective) {
  const range = told.low === null ? "" : ` [${number(told.low)}, ${number(told.high)}]`;
  return el("p", {}, `On ${told.of} fresh seeds: ${objective} ${number(told.best)} with the best settings and ${number(told.default)} with the default ones, a difference of `,
    el("b", {}, `${number(told.value)}${range}`), " (95%, Welch).",
    el("span", { className: "faint" }, told.optimism === null ? "" : ` The search promised ${number(Math.abs(told.optimism))} ${told.optimism < 0 ? "less" : "more"} than fresh seeds gave.`));
}

class Study {
  constructor(title) {
    this.head = el("div");
    this.body = el("div");
    this.chart = new Chart({ height: 220, xName: "trial" });
    this.root = el("section", {}, el("h2", {}, title), this.head, this.chart.root, this.body);
  }

  show(found) {
    const counts = Object.entries(found.counts).filter(([, count]) => count).map(([state, count]) => `${count} ${state}`).join(", ");
    const searched = Object.entries(found.searched).map(([name, range]) => `${name}=${range}`).join(" ");
    fill(this.head, el("p", {}, `${found.algorithm} on ${found.env}: ${found.trials.length} trials${found.cut ? " and more" : ""} (${counts || "none yet"})${found.busy ? ", searching now" : ""}. `,
      el("span", { className: "faint" }, `${found.maximise ? "Largest" : "Smallest"} ${found.objective.replace(/^min:/, "")} wanted; ${found.sampler}${found.pruner ? `, ${found.pruner} stops trials early` : ""}.`)),
    el("p", { className: "faint" }, el("code", {}, searched)),
    found.confirmation ? fresh(found.confirmation, found.objective.replace(/^min:/, "")) : null);
    const done = found.trials.filter((trial) => trial.state === "complete" && trial.value !== null).sort((a, b) => a.number - b.number);
    this.chart.show([
      { label: "best so far", x: found.so_far.map(([x]) => x), y: found.so_far.map(([, y]) => y), look: look(0), stairs: true },
      { label: "complete trials", x: done.map((trial) => trial.number), y: done.map((trial) => trial.value), look: look(1), dots: true },
    ]);
    fill(this.body, Object.keys(found.importances).length ? [el("h3", {}, "What mattered"), shares(found.importances),
      el("p", { className: "faint" }, "Share of each setting in being among the best (PED-ANOVA).")] : null, trials(found));
  }
}

export function studiesView(main, live) {
  const body = el("div", {}, el("p", { className: "faint" }, "Reading.")), shown = new Map();
  fill(main, el("h1", {}, "Tuning"), body);
  live.open();
  const stop = every(5, async () => {
    try {
      const found = await ask("/api/studies"), titles = new Set(found.map((one) => one.title));
      for (const [title, study] of shown) if (!titles.has(title)) { study.chart.close(); shown.delete(title); }
      for (const one of found) if (!shown.has(one.title)) shown.set(one.title, new Study(one.title));
      const roots = found.map((one) => shown.get(one.title).root);
      if (!found.length) fill(body, el("p", {}, "No searches: ", el("code", {}, "flockrl tune"), " writes them."));
      else if (roots.length !== body.children.length || roots.some((root, i) => root !== body.children[i])) fill(body, roots);
      for (const one of found) shown.get(one.title).show(one);
    } catch (error) {
      fill(body, trouble(error));
    }
  });
  return () => { stop(); for (const study of shown.values()) study.chart.close(); };
}
