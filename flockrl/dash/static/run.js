// One run: its figures by kind, its settings, its result.

import { Chart, look } from "./chart.js";
import { ask, duration, el, fill, number, trouble } from "./dom.js";
import { left, part, state } from "./runs.js";

// Kinds of figures, in the order of the page; the first that fits counts.
const KINDS = [
  ["Returns", /^(eval_)?return($|_|\[)/],
  ["Messages", /message|signal|listen|influence|silence|bits|comm|talk|gate|channel/],
  ["Roles and hierarchy", /role|option|skill|goal|manager/],
  ["Credit", /credit|shapley|counterfactual|advantage/],
  ["Team", /welfare|efficien|jain|gini|envy|fair|success|exploitab|nash/],
  ["Losses and policy change", /loss|policy|kl|clip|entropy|grad|value|explained|temperature|alpha|epsilon|lr|ratio|norm|q_|critic|actor/],
  ["Evaluation", /^eval_/],
  ["Episodes and speed", /episode|step|second/],
  ["More", /./],
];
const CREDITED = /^((?:.*\/)?credit)_(?!spread$|error$)(.+)$/;
const HIDDEN = new Set(["step", "seconds"]);

// return_per_agent[0], return_per_agent[1] -> one chart with a line for each; so with the sides of a return, and with
// what each agent is credited with.
function charts(names) {
  const found = new Map();
  for (const name of names) {
    if (HIDDEN.has(name)) continue;
    const side = /^((?:eval_)?return)_(?!std$|per_agent)([^[]+)$/.exec(name);
    const credited = CREDITED.exec(name);
    const base = side ? `${side[1]} by side` : credited ? `${credited[1]} by agent` : name.replace(/\[\d+\]$/, "");
    found.set(base, [...(found.get(base) || []), name]);
  }
  return found;
}

const kindOf = (name) => KINDS.find(([, pattern]) => pattern.test(name))[0];

// What agents are credited with now: the length of a bar is the share in all that is paid or charged.
function credits(names, lines) {
  const last = names.map((name) => [CREDITED.exec(name)[2], lines[name] && lines[name].y.at(-1)]).filter(([, x]) => x !== undefined);
  const all = last.reduce((sum, [, x]) => sum + Math.abs(x), 0) || 1;
  return last.length > 1 ? el("div", { className: "chart" }, el("h3", {}, "credit shares, newest"), el("div", { className: "bars" }, last.flatMap(([agent, x]) => [
    el("span", {}, agent), el("div", {}, el("i", { className: x < 0 ? "less" : "", style: { width: `${(100 * Math.abs(x)) / all}%` } })),
    el("span", {}, `${number(x, 3)} (${Math.round((100 * Math.abs(x)) / all)} %)`)]))) : null;
}

function setting(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

function table(values) {
  const rows = Object.entries(values).map(([name, value]) => el("tr", {}, el("td", {}, el("code", {}, name)), el("td", { className: "name" }, setting(value))));
  return el("div", { className: "scroll pairs" }, el("table", {}, el("tbody", {}, rows)));
}

function flat(value, before = "") {
  return Object.assign({}, ...Object.entries(value).map(([name, x]) =>
    x && typeof x === "object" && !Array.isArray(x) ? flat(x, `${before}${name}.`) : { [before + name]: x }));
}

export function runView(main, live, id) {
  const head = el("div"), body = el("div"), about = el("div"), paid = el("div");
  const shown = new Map();
  let figures = "";
  fill(main, head, body, about);

  function refresh() {
    const run = live.runs.get(id);
    if (!run) {
      if (live.known) fill(head, el("p", {}, "There is no such run (any more). ", el("a", { href: "#/" }, "All runs")));
      return;
    }
    document.title = `${run.title} – flockrl`;
    const time = left(run);
    const card = (value, name) => el("div", { className: "card" }, el("b", {}, value), el("span", {}, name));
    fill(head, el("h1", {}, run.title), el("p", {}, state(run), ` ${run.algorithm} on ${run.env}${run.seed === null ? "" : `, seed ${run.seed}`} `,
      run.step === null ? null : el("a", { href: `#/watch/${id}` }, "Watch this team")),
      run.failure ? el("p", { className: "trouble" }, run.failure) : null,
      run.state === "stopped" ? el("p", { className: "faint" }, "It was interrupted or killed; ", el("code", {}, "flockrl resume"), " goes on with it.") : null,
      run.readable ? null : el("p", { className: "trouble" }, "Its configuration cannot be read."),
      el("div", { className: "cards" }, card(number(run.eval_return), "newest evaluation"), card(number(run.return), "training return"),
        card(`${Math.round(100 * part(run))} %`, `${number(run.step)} of ${number(run.steps)} steps`),
        card(number(run.speed), "steps per second"), card(duration(time === null ? run.seconds : time), time === null ? "trained for" : "left")));
  }

  async function detail() {
    let told;
    try {
      told = await ask(`/api/run/${id}`);
    } catch (error) {
      if (live.known) fill(about, trouble(error));
      return;
    }
    const names = charts(Object.keys(told.newest)), key = [...names.keys()].join();
    if (key !== figures) {
      figures = key;
      build(names);
    }
    const { versions = {}, chosen = {}, ...config } = told.config;
    fill(about, el("h2", {}, "Settings"), table(flat(config)),
      Object.keys(told.result).length ? [el("h2", {}, "Result"), table(told.result)] : null,
      el("details", {}, el("summary", {}, "Versions and machine"), table({ ...flat(chosen), ...flat(versions) })),
      told.skipped ? el("p", { className: "faint" }, `${told.skipped} lines of its metrics are no log points and were skipped.`) : null,
      el("p", { className: "faint" }, el("code", {}, told.path)));
  }

  function build(names) {
    for (const chart of shown.values()) chart.chart.close();
    shown.clear();
    const sections = new Map(KINDS.map(([kind]) => [kind, []]));
    for (const [base, own] of names) {
      const chart = new Chart({ title: base, height: 190 });
      shown.set(base, { chart, names: own });
      sections.get(kindOf(base)).push(chart.root);
    }
    if (sections.get("Credit").length) sections.get("Credit").push(paid);
    fill(body, [...sections].filter(([, own]) => own.length).map(([kind, own]) => el("section", {}, el("h2", {}, kind),
      kind === "Messages" ? el("p", { className: "faint" }, "Who listens to whom is shown where the team is watched.") : null,
      el("div", { className: "grid" }, own))));
    const ys = [...names.values()].flat().slice(0, 120);
    live.open({ lines: [[id]], ys, points: 800, onLine: (line) => draw(line.figures) });
  }

  function draw(lines) {
    const told = [];
    for (const [base, { chart, names }] of shown) {
      const credited = base.endsWith("credit by agent");
      const label = (name) => (name.includes("[") ? `agent ${/\[(\d+)\]/.exec(name)[1]}` : credited ? CREDITED.exec(name)[2] : name);
      chart.show(names.map((name, i) => ({ label: label(name), look: look(i), ...lines[name] })));
      if (credited) told.push(credits(names, lines));
    }
    fill(paid, told);
  }

  let last = null;
  function changed() {
    refresh();
    const run = live.runs.get(id), now = run && `${run.state} ${run.finished} ${figures ? "" : run.step}`;
    if (now && now !== last) { last = now; detail(); }
  }
  live.listeners.add(changed);
  live.open({ lines: [], ys: [] });
  changed();
  return () => {
    live.listeners.delete(changed);
    for (const { chart } of shown.values()) chart.close();
  };
}
