// Benchmarks and servers: tables that are asked for again now and then.

import { ask, duration, el, fill, number, trouble } from "./dom.js";

export function every(seconds, call) {
  let going = true, timer;
  const again = async () => {
    await call();
    if (going) timer = setTimeout(again, 1000 * seconds);
  };
  again();
  return () => { going = false; clearTimeout(timer); };
}

function bench(found) {
  const best = new Map();
  for (const row of found.rows) if (!Object.keys(row.sides).length) best.set(row.env, Math.max(best.get(row.env) ?? -Infinity, row.mean));
  const names = [["environment"], ["algorithm"], ["seeds", 1], ["mean", 1], ["95% interval", 1], ["worst … best", 1], ["steps", 1], ["steps/s", 1]];
  const rows = found.rows.map((row) => {
    const sides = Object.entries(row.sides).map(([side, x]) => `${side} ${number(x)}`).join(", ");
    return el("tr", { className: best.get(row.env) === row.mean ? "best" : "" }, el("td", { className: "name" }, row.env), el("td", { className: "name" }, row.algorithm),
      el("td", { className: "n" }, number(row.seeds)), el("td", { className: "n" }, sides || number(row.mean)),
      el("td", { className: "n" }, row.low === null ? "–" : `[${number(row.low)}, ${number(row.high)}]`),
      el("td", { className: "n" }, `${number(row.worst)} … ${number(row.best)}`), el("td", { className: "n" }, number(row.steps)),
      el("td", { className: "n" }, number(row.speed)));
  });
  return el("section", {}, el("h2", {}, found.title), el("p", {}, found.question ? `${found.question} ` : "",
    el("span", { className: "faint" }, `${found.done} of ${found.cells} cells are finished.`)),
  el("div", { className: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, names.map(([name, n]) => el("th", { className: n ? "n" : "" }, name)))), el("tbody", {}, rows))));
}

export function benchmarksView(main, live) {
  const body = el("div", {}, el("p", { className: "faint" }, "Reading."));
  fill(main, el("h1", {}, "Benchmarks"), body);
  live.open();
  return every(10, async () => {
    try {
      const found = await ask("/api/benches");
      fill(body, found.length ? [
        el("p", { className: "faint" }, "Score of a seed: its last evaluation, greedy, mean over agents; of the seeds, the mean with its 95% bootstrap interval. Bold: the highest mean on its environment. More statistics: flockrl report."),
        found.map(bench)] : el("p", {}, "No benchmarks: ", el("code", {}, "flockrl bench"), " writes them."));
    } catch (error) {
      fill(body, trouble(error));
    }
  });
}

function server(found) {
  const said = found.said;
  const parts = [el("h2", {}, found.title), el("p", { className: "faint" }, found.address)];
  if (!said) return el("section", {}, parts, el("p", { className: "trouble" }, found.trouble));
  const accepted = said.accepted || {}, refused = said.refused || {}, trained = said.trained || {};
  const card = (value, name) => el("div", { className: "card" }, el("b", {}, value), el("span", {}, name));
  const reasons = Object.entries(refused.reasons || {}).map(([why, count]) => el("tr", {}, el("td", { className: "n" }, number(count)), el("td", { className: "name" }, why)));
  const last = (Array.isArray(refused.last) ? refused.last : []).map((one) => el("tr", {}, el("td", {}, String(one.from)), el("td", { className: "name" }, String(one.reason))));
  return el("section", {}, parts, el("p", {}, `${said.health}: ${said.environment}${said.algorithm ? `, ${said.algorithm}` : ""}, up ${duration(said.uptime)}`),
    said.trouble ? el("p", { className: "trouble" }, String(said.trouble)) : null,
    el("div", { className: "cards" }, card(number(said.rows_per_second), "rows per second"), card(number(accepted.trajectories), "trajectories"),
      card(number(refused.messages), "messages refused"), card(said.version === undefined ? "–" : number(said.version), `version (published ${number(said.published)})`),
      card(number(trained.steps), "steps trained on"), card(said.metrics ? number(said.metrics.return) : "–", "return"),
      card(`${number((said.log_bytes || 0) / 1048576, 3)} MB`, "log")),
    el("p", { className: "faint" }, `Agents: ${(said.agents || []).join(", ")}`),
    actors(said.actors),
    reasons.length ? [el("h3", {}, "Refused"), el("div", { className: "scroll" }, el("table", {}, el("tbody", {}, reasons)))] : null,
    last.length ? el("details", {}, el("summary", {}, "Senders refused last"), el("table", {}, el("tbody", {}, last))) : null);
}

function actors(told) {
  const rows = (told && Array.isArray(told.last) ? told.last : []).map((one) => el("tr", {}, el("td", { className: "name" }, String(one.name)),
    el("td", { className: "n" }, number(one.trajectories)), el("td", { className: "n" }, one.version < 0 ? "–" : number(one.version)), el("td", { className: "n" }, `${duration(one.ago)} ago`)));
  if (!rows.length) return null;
  const head = [["actor"], ["trajectories", 1], ["version", 1], ["last", 1]].map(([name, n]) => el("th", { className: n ? "n" : "" }, name));
  return [el("h3", {}, `Actors: ${number(told.seen)} seen, ${number(told.lately)} in the last minute`),
    el("div", { className: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)))];
}

export function serversView(main, live) {
  const body = el("div", {}, el("p", { className: "faint" }, "Asking."));
  fill(main, el("h1", {}, "Servers"), body);
  live.open();
  return every(3, async () => {
    try {
      const found = await ask("/api/relays");
      fill(body, found.length ? found.map(server) : el("p", {}, "No server has its data here: ", el("code", {}, "flockrl serve --data DIR"), " starts one."));
    } catch (error) {
      fill(body, trouble(error));
    }
  });
}
