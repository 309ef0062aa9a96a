// The list of runs, and a chart of those that are chosen.

import { Chart, look } from "./chart.js";
import { ask, duration, el, fill, number, short } from "./dom.js";

const SORTS = {
  newest: ["newest first", (a, b) => b.changed - a.changed],
  name: ["name", (a, b) => a.title.localeCompare(b.title, "en", { numeric: true })],
  score: ["evaluation", (a, b) => (b.eval_return ?? -Infinity) - (a.eval_return ?? -Infinity)],
  progress: ["progress", (a, b) => part(b) - part(a)],
  state: ["state", (a, b) => a.state.localeCompare(b.state)],
};
const GROUPS = {
  none: ["nothing", () => ""],
  experiment: ["algorithm and environment", (run) => `${run.algorithm} on ${run.env}`],
  algorithm: ["algorithm", (run) => run.algorithm],
  env: ["environment", (run) => run.env],
  state: ["state", (run) => run.state],
};
const SHOWN = 400;
export const part = (run) => (run.state === "finished" ? 1 : run.steps && run.step ? Math.min(run.step / run.steps, 1) : 0);
export const left = (run) =>
  run.state === "running" && run.pace && run.steps ? Math.max(run.steps - run.step, 0) * run.pace : null;

export function state(run) {
  const words = { running: "▶ running", finished: "✓ finished", failed: "✗ failed", stopped: "■ stopped", trainer: "◇ trainer" };
  const titles = { stopped: "Interrupted or killed: flockrl resume goes on with it.", failed: run.failure };
  return el("span", { className: `state ${run.state}`, title: titles[run.state] || "" }, words[run.state] || run.state);
}

// What the user chose, kept while other views are shown.
const chosen = { ids: null, search: "", group: "experiment", sort: "newest", x: "step", y: "eval_return", mean: true, log: false };

function select(label, options, value, change) {
  const list = Object.entries(options).map(([key, name]) => el("option", { value: key, selected: key === value }, name));
  return el("label", {}, label, el("select", { onchange: (event) => change(event.target.value) }, list));
}

export function runsView(main, live) {
  const chart = new Chart({ height: 340, xName: chosen.x, log: chosen.log });
  const body = el("tbody"), head = el("p", { className: "faint", role: "status" }), unlike = el("div");
  const all = el("input", { type: "checkbox", "aria-label": "Choose all runs that are listed" });
  const figures = el("datalist", { id: "figures" });
  let lines = new Map(), names = new Map(), told = "", waiting = 0;

  const matching = () => {
    const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => `${run.title} ${run.algorithm} ${run.env} ${run.state} seed ${run.seed}`.toLowerCase();
    return [...live.runs.values()].filter((run) => words.every((word) => text(run).includes(word))).sort(SORTS[chosen.sort][1]);
  };

  function groups() {
    const runs = [...live.runs.values()].filter((run) => chosen.ids.has(run.id));
    runs.sort(SORTS.name[1]);
    if (!chosen.mean) return runs.slice(0, 32).map((run) => [run]);
    const found = new Map();
    for (const run of runs) found.set(run.group, [...(found.get(run.group) || []), run]);
    return [...found.values()].slice(0, 32);
  }

  function label(runs) {
    const run = runs[0], alike = [...names.values()].filter((other) => other[0].algorithm === run.algorithm && other[0].env === run.env);
    if (alike.length < 2) return `${run.algorithm} · ${run.env}`;
    return runs.length > 1 ? run.title.replace(/\/?seed_\d+$/, "") : run.title;
  }

  function follow() {
    const groupsNow = groups();
    names = new Map(groupsNow.map((runs) => [runs.map((run) => run.id).join("+"), runs]));
    lines = new Map([...lines].filter(([key]) => names.has(key)));
    live.open({
      lines: groupsNow.map((runs) => runs.map((run) => run.id)), x: chosen.x, ys: [chosen.y],
      onLine: (line) => { lines.set(line.runs.join("+"), line.figures[chosen.y]); soon(); },
    });
    draw();
    differences();
  }

  // Lines that arrive together are drawn together.
  function soon() {
    if (!waiting) waiting = requestAnimationFrame(draw);
  }

  function draw() {
    cancelAnimationFrame(waiting);
    waiting = 0;
    chart.xName = chosen.x;
    chart.log = chosen.log;
    const shown = [...names].map(([key, runs], i) => ({ label: label(runs), look: look(i), ...lines.get(key) }));
    chart.show(shown);
    chart.root.setAttribute("aria-label", `${chosen.y} over ${chosen.x} of ${shown.length} lines`);
  }

  async function differences() {
    const runs = [...names.values()].map((group) => group[0]);
    const key = runs.map((run) => run.id).join();
    if (key === told) return;
    told = key;
    if (runs.length < 2) { fill(unlike); return; }
    const found = await ask(`/api/differences?runs=${runs.map((run) => run.id).join()}`).catch(() => null);
    if (!found || key !== told) return;
    const header = el("tr", {}, el("th", {}, "setting"), runs.map((run) => el("th", {}, el("a", { href: `#/run/${run.id}` }, run.title))));
    const rows = found.names.map((name) => el("tr", {}, el("td", {}, el("code", {}, name)), runs.map((run) => {
      const value = found.values[run.id] && found.values[run.id][name];
      return el("td", {}, typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "–"));
    })));
    fill(unlike, el("h2", {}, "What differs"),
      el("p", { className: "faint" }, `${found.names.length} settings differ, ${found.same} are the same.`),
      el("div", { className: "scroll" }, el("table", {}, el("thead", {}, header), el("tbody", {}, rows))));
  }

  function choose(ids, on) {
    for (const id of ids) if (on) chosen.ids.add(id); else chosen.ids.delete(id);
    list();
    follow();
  }

  function row(run) {
    const done = part(run), time = left(run), on = chosen.ids.has(run.id);
    const about = `${Math.round(100 * done)} %${time === null ? "" : `, ${duration(time)} left`}`;
    return el("tr", { className: on ? "on" : "" },
      el("td", {}, el("input", { type: "checkbox", checked: on, "aria-label": `Show ${run.title} in the chart`, "data-run": run.id,
        onchange: (event) => choose([run.id], event.target.checked) })),
      el("td", { className: "name" }, el("a", { href: `#/run/${run.id}` }, run.title),
        el("div", { className: "faint" }, `${run.algorithm} · ${run.env}${run.seed === null ? "" : ` · seed ${run.seed}`}`)),
      el("td", {}, state(run), el("div", { className: "progress", title: about }, el("i", { style: { width: `${100 * done}%` } })),
        el("div", { className: "faint state" }, run.state === "running" || done < 1 ? about : duration(run.seconds))),
      el("td", { className: "n" }, number(run.eval_return ?? run.return)),
      el("td", { className: "n wide" }, run.step === null ? "–" : short(run.step)));
  }

  function list() {
    const runs = matching(), kind = GROUPS[chosen.group][1], found = new Map();
    for (const run of runs.slice(0, SHOWN)) found.set(kind(run), [...(found.get(kind(run)) || []), run]);
    const active = document.activeElement && document.activeElement.dataset.run;
    const rows = [];
    for (const [name, own] of found) {
      if (chosen.group !== "none") {
        const on = own.every((run) => chosen.ids.has(run.id));
        const going = own.filter((run) => run.state === "running").length;
        rows.push(el("tr", { className: "group" },
          el("td", {}, el("input", { type: "checkbox", checked: on, "data-run": `group ${name}`, "aria-label": `Show all of ${name}`,
            onchange: (event) => choose(own.map((run) => run.id), event.target.checked) })),
          el("td", { colSpan: 4 }, `${name} `, el("span", { className: "faint" }, `${own.length} run${own.length > 1 ? "s" : ""}${going ? `, ${going} running` : ""}`))));
      }
      rows.push(...own.map(row));
    }
    fill(body, rows);
    if (active) for (const box of body.querySelectorAll("input")) if (box.dataset.run === active) box.focus();
    all.checked = runs.length > 0 && runs.every((run) => chosen.ids.has(run.id));
    const more = runs.length > SHOWN ? `, the first ${SHOWN} listed` : "";
    const cut = live.about.cut ? " There are more directories than are looked at." : "";
    head.textContent = `${runs.length} of ${live.runs.size} runs${more}; ${chosen.ids.size} in the chart.${cut}`;
  }

  function refresh() {
    if (!live.known) return;
    if (chosen.ids === null && live.runs.size) {
      const newest = [...live.runs.values()].sort(SORTS.newest[1]), kinds = new Set();
      const alike = newest.filter((run) => run.env === newest[0].env);
      for (const run of alike) if (kinds.size < 8) kinds.add(run.group);
      chosen.ids = new Set(alike.filter((run) => kinds.has(run.group)).slice(0, 24).map((run) => run.id));
    }
    if (chosen.ids === null) {
      head.textContent = "No runs yet: they appear here when training begins.";
      return;
    }
    list();
    const now = groups().map((runs) => runs.map((run) => run.id).join("+")).join();
    if (now !== [...names.keys()].join()) follow();
  }

  async function suggest() {
    const first = [...names.values()].map((runs) => runs[0]).slice(0, 4);
    const details = await Promise.all(first.map((run) => ask(`/api/run/${run.id}`).catch(() => ({ newest: {} }))));
    const found = [...new Set(details.flatMap((one) => Object.keys(one.newest)))].sort();
    fill(figures, found.map((name) => el("option", { value: name })));
  }

  const pick = (label, key) => el("label", {}, label, el("input", { value: chosen[key], size: 18, "aria-label": `Figure on the ${label} axis`,
    list: undefined, onfocus: suggest, onchange: (event) => { chosen[key] = event.target.value.trim() || "step"; lines.clear(); follow(); } }));
  const axes = [pick("y", "y"), pick("x", "x")];
  for (const axis of axes) axis.querySelector("input").setAttribute("list", "figures");
  const toggle = (text, key) => el("button", { type: "button", "aria-pressed": String(chosen[key]), onclick: (event) => {
    chosen[key] = !chosen[key];
    event.target.setAttribute("aria-pressed", String(chosen[key]));
    if (key === "log") draw(); else follow();
  } }, text);
  const names2 = (table) => Object.fromEntries(Object.entries(table).map(([key, [name]]) => [key, name]));
  all.addEventListener("change", () => choose(matching().map((run) => run.id), all.checked));

  fill(main, el("div", { className: "split" },
    el("section", { "aria-label": "Runs" },
      el("div", { className: "bar" },
        el("input", { type: "search", placeholder: "Search runs", "aria-label": "Search runs", value: chosen.search,
          oninput: (event) => { chosen.search = event.target.value; refresh(); } }),
        select("group by", names2(GROUPS), chosen.group, (value) => { chosen.group = value; refresh(); }),
        select("sort by", names2(SORTS), chosen.sort, (value) => { chosen.sort = value; refresh(); })),
      head,
      el("div", { className: "tall" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, all), el("th", {}, "run"), el("th", {}, "state"),
        el("th", { className: "n" }, "return"), el("th", { className: "n wide" }, "steps"))), body))),
    el("section", { className: "side", "aria-label": "Chart" }, el("div", { className: "sticky" },
      el("div", { className: "bar" }, axes, toggle("mean over seeds", "mean"), toggle("log y", "log")),
      figures, chart.root,
      el("p", { className: "faint" }, "Bands: 95% bootstrap interval of the mean over seeds. Drag to zoom, double-click to go back."),
      unlike))));
  live.listeners.add(refresh);
  live.open();
  refresh();
  return () => { live.listeners.delete(refresh); cancelAnimationFrame(waiting); chart.close(); };
}
