// An episode of a trained team: its pictures, and what goes on inside of an agent at each step.

import { ask, el, fill, number, trouble } from "./dom.js";
import { bars, cells, curve, matrix, ring } from "./inside.js";
import { keep, kind, record } from "./record.js";

const SPEEDS = { 0.25: "¼ ×", 0.5: "½ ×", 1: "1 ×", 2: "2 ×", 4: "4 ×" };
const STEP_MS = 250;

function largest(film, what) {
  const found = [];
  for (const step of film.steps) for (const row of step[what] || []) row.forEach((x, k) => { found[k] = Math.max(found[k] || 1e-6, Math.abs(x)); });
  return found;
}

export function watchView(main, live, id) {
  const stage = el("div"), status = el("p", { role: "status", className: "faint" });
  const seed = el("input", { type: "number", min: 0, max: 999999999, value: 0, style: { width: "90px" } });
  const explore = el("input", { type: "checkbox" });
  const begin = el("button", { type: "button", onclick: () => film() }, "Play this episode");
  const title = el("h1", {}, "Watch");
  fill(main, title, el("p", {}, el("a", { href: `#/run/${id}` }, "The run in figures")),
    el("div", { className: "bar" }, el("label", {}, "seed", seed), el("label", {}, explore, "explore"), begin,
      el("button", { type: "button", onclick: () => { seed.value = Number(seed.value) + 1; film(); } }, "Next episode")),
    status, stage);
  live.open();
  let going = true, timer = null, now = 0, keys = null;

  async function film() {
    const mine = ++now;
    stop();
    begin.disabled = true;
    status.textContent = "Playing an episode with the newest checkpoint.";
    try {
      const { film: name } = await ask(`/api/run/${id}/film?seed=${Number(seed.value)}&explore=${explore.checked ? 1 : 0}`, { method: "POST" });
      for (;;) {
        if (!going || mine !== now) return;
        const told = await ask(`/api/film/${name}`);
        if (told.trouble) throw new Error(told.trouble);
        if (told.steps) { status.textContent = ""; show(name, told); break; }
        status.textContent = `Playing an episode with the newest checkpoint: ${Math.round(told.waiting)} s. The first one has to be compiled.`;
        await new Promise((done) => setTimeout(done, 400));
      }
    } catch (error) {
      status.textContent = "";
      fill(stage, trouble(error));
    }
    begin.disabled = false;
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    if (keys) removeEventListener("keydown", keys);
    keys = null;
  }

  function show(name, told) {
    const count = told.steps.length, pictures = Array.from({ length: told.pictures }, (_, t) => Object.assign(new Image(), { src: `/api/film/${name}/${t}.png` }));
    title.textContent = told.title;
    const scales = { obs: largest(told, "obs"), said: largest(told, "said") };
    const colors = told.colors;
    let t = 0, agent = 0, speed = 1, map = 0;
    const screen = el("img", { className: "screen", alt: "" }), where = el("span", { className: "faint", role: "status" }), panel = el("div");
    const slider = el("input", { type: "range", className: "scrub", min: 0, max: count, value: 0, "aria-label": "Step of the episode", oninput: () => { pause(); go(Number(slider.value)); } });
    const button = el("button", { type: "button", "aria-pressed": "false", onclick: () => (timer ? pause() : play()) }, "▶ Play");
    const written = el("span", { className: "faint", role: "status" });
    const video = kind() && el("button", { type: "button", onclick: save, title: "At the speed that is chosen; writing it takes as long as it lasts." }, `Save as ${kind()[1] === "mp4" ? "MP4" : "WebM"}`);
    const who = told.agents.map((label, i) => el("button", { type: "button", onclick: () => { agent = i; inside(); } }, label));

    const which = told.maps.length < 2 ? null : el("label", { className: "bar" }, "attention", el("select", { onchange: (event) => { map = Number(event.target.value); inside(); } },
      told.maps.map((name, k) => el("option", { value: k }, name))));

    function go(to) {
      t = Math.max(0, Math.min(to, count));
      slider.value = t;
      screen.src = pictures[Math.min(t, pictures.length - 1)].src;
      screen.alt = `The team after ${t} steps`;
      where.textContent = `step ${t} of ${count}${told.cut ? " (the rest is not shown)" : ""}`;
      inside();
    }
    function pause() { clearTimeout(timer); timer = null; button.textContent = "▶ Play"; button.setAttribute("aria-pressed", "false"); }
    function play() {
      if (t >= count) go(0);
      const tick = () => { if (t >= count) { pause(); return; } go(t + 1); timer = setTimeout(tick, STEP_MS / speed); };
      button.textContent = "❚❚ Pause";
      button.setAttribute("aria-pressed", "true");
      timer = setTimeout(tick, STEP_MS / speed);
    }
    async function save() {
      const mine = now;
      pause();
      video.disabled = true;
      try {
        const made = await record(pictures, STEP_MS / speed, (k) => { written.textContent = `${k} of ${pictures.length} pictures written`; }, () => going && mine === now);
        if (made) keep(made, `episode.${kind()[1]}`);
        written.textContent = "";
      } catch (error) {
        written.textContent = String(error.message || error);
      }
      video.disabled = false;
    }
    function inside() {
      who.forEach((one, i) => one.setAttribute("aria-pressed", String(i === agent)));
      const step = told.steps[Math.min(t, count - 1)], over = t >= count, before = told.steps[t - 1];
      const [reward, total] = before ? [before.reward, before.total] : [told.agents.map(() => 0), told.agents.map(() => 0)];
      const value = step.value && step.value[agent];
      const cards = [[number(reward[agent]), "reward of the last step"], [number(total[agent]), "return so far"], [number(total.reduce((a, b) => a + b, 0) / total.length), "return, mean over agents"]];
      if (value !== null) cards.push([number(value), "value: expected from here on"]);
      const parts = [
        el("h2", {}, told.agents[agent] + (told.sides[agent] ? ` (${told.sides[agent]})` : "") + (step.alive[agent] ? "" : ", not in the game now")),
        over ? el("p", { className: "faint" }, "The episode is over: below is its last step.") : null,
        el("div", { className: "cards" }, cards.map(([figure, label]) => el("div", { className: "card" }, el("b", {}, figure), el("span", {}, label)))),
        el("h3", {}, over ? "Did" : "Does next"), bars(step.chances[agent], step.action[agent]),
        el("p", { className: "faint" }, "▸ marks its action. Bars: the share of 256 draws of the exploring policy."),
        el("h3", {}, `Sees: ${told.sizes[agent]} number${told.sizes[agent] > 1 ? "s" : ""}${told.sizes[agent] > step.obs[agent].length ? `, the first ${step.obs[agent].length} shown` : ""}`), cells(colors, step.obs[agent], scales.obs),
      ];
      parts.push(...worth(value).filter((part) => part));
      if (step.said) parts.push(el("h3", {}, "Says (before the channel)"), cells(colors, step.said[agent], scales.said));
      if (step.attention) parts.push(...attends(step));
      if (step.said) parts.push(el("h3", {}, "Who listens to whom"), matrix(colors, told.agents, step.influence, agent, false, Math.max(...step.influence.flat(), 1e-3)),
        el("p", { className: "faint" }, "How far the listener's policy moves when it does not hear the speaker: KL, or the share of changed actions for learners without probabilities."));
      fill(panel, parts);
    }
    function worth(value) {
      const title = el("h3", {}, "Expects");
      const values = told.steps.map((one) => one.value && one.value[agent]), some = values.some((x) => x !== null);
      if (!some) return [title, el("p", { className: "faint" }, told.steps[0].value ? "Nobody values this agent: its side does not learn, or has no critic, or it was never in the game." : "This learner has no critic that could say what it expects.")];
      return [title, curve(values, Math.min(t, count - 1)),
        value === null ? el("p", { className: "faint" }, "Now it is not in the game, and critics learn nothing about that.") : null,
        el("p", { className: "faint" }, "What its critic expects from here on, discounted, of the rewards that it learns from; where actions are valued (Q-learning, DDPG, TD3, SAC), after this action. With a mixer, the agent's own part, of which the mixer makes the team's value.")];
    }
    function attends(step) {
      const weights = step.attention[map];
      return [el("h3", {}, `Attends to${told.maps.length > 1 ? ` (${told.maps[map]})` : ""}`), el("div", { className: "attends" }, ring(told.agents, weights, agent, step.alive), matrix(colors, told.agents, weights, agent, true, Math.min(1, 4 / told.agents.length))),
        el("p", { className: "faint" }, "The share of its attention that each listener gives what each speaker said, and itself on the diagonal: rows add up to 1. In the ring, agents have their numbers, and thicker lines carry more.")];
    }
    stop();
    keys = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|BUTTON|TEXTAREA|A)$/.test(event.target.tagName)) return;
      const acts = { " ": () => (timer ? pause() : play()), ArrowRight: () => { pause(); go(t + 1); }, ArrowLeft: () => { pause(); go(t - 1); }, Home: () => go(0), End: () => go(count) };
      if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
    };
    addEventListener("keydown", keys);
    fill(stage, el("div", { className: "watch" },
      el("div", {}, screen, slider, el("div", { className: "bar" }, button,
        el("button", { type: "button", "aria-label": "One step back", onclick: () => { pause(); go(t - 1); } }, "◀"),
        el("button", { type: "button", "aria-label": "One step on", onclick: () => { pause(); go(t + 1); } }, "▶|"),
        el("label", {}, "speed", el("select", { onchange: (event) => { speed = Number(event.target.value); } }, Object.entries(SPEEDS).sort((a, b) => a[0] - b[0]).map(([value, label]) => el("option", { value, selected: value === "1" }, label)))),
        where), el("div", { className: "bar" },
        el("a", { href: `/api/film/${name}/film.gif`, download: "episode.gif" }, "Save as GIF"), video, written),
      el("p", { className: "faint" }, "Keys: space plays and pauses, ← and → step.")),
      el("div", {}, el("div", { className: "agents", role: "group", "aria-label": "Follow an agent" }, who, told.hidden ? el("span", { className: "faint" }, `and ${told.hidden} more`) : null), which, panel)));
    go(0);
    play();
  }

  film();
  return () => { going = false; now += 1; stop(); };
}
