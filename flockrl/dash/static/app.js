// Which view is shown, by the part of the address after #.

import { el, fill, trouble } from "./dom.js";
import { Live } from "./live.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { studiesView } from "./studies.js";
import { benchmarksView, serversView } from "./tables.js";
import { watchView } from "./watch.js";

const main = document.getElementById("main"), link = document.getElementById("link");
const live = new Live((on) => {
  link.textContent = on ? "live" : "not connected";
  link.className = `link ${on ? "on" : "off"}`;
});
const VIEWS = { "": runsView, run: runView, benchmarks: benchmarksView, tuning: studiesView, servers: serversView, watch: watchView };
const TITLES = { "": "Runs", run: "Run", benchmarks: "Benchmarks", tuning: "Tuning", servers: "Servers", watch: "Watch" };
let leave = () => {};

function show(focus) {
  const [name = "", id = ""] = location.hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS[name] || VIEWS[""];
  leave();
  leave = () => {};
  fill(main);
  document.title = `${TITLES[name] || "Runs"} – flockrl`;
  for (const a of document.querySelectorAll("nav a")) {
    const here = a.dataset.view === (name === "run" || name === "watch" || !name ? "runs" : name);
    if (here) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
  try {
    leave = view(main, live, id) || (() => {});
  } catch (error) {
    fill(main, trouble(error));
  }
  if (focus) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
}

const saved = localStorage.getItem("theme");
const preferred = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = saved || (preferred.matches ? "dark" : "light");
preferred.addEventListener("change", () => {
  if (localStorage.getItem("theme")) return;
  document.documentElement.dataset.theme = preferred.matches ? "dark" : "light";
  show(false);
});
document.getElementById("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  show(false);
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => show(true));
addEventListener("pagehide", () => live.close());
addEventListener("pageshow", (event) => { if (event.persisted) show(false); });
show(false);
