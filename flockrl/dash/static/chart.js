// Charts: lines with bands, colours that colour-blind people can tell apart (Okabe and Ito), dashes after eight lines.

import { el, fill, number, sample, short } from "./dom.js";

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#4d4d4d"];
const DARK = ["#4aa8e0", "#ff8c42", "#3ddbaa", "#eaa0c8", "#f0c648", "#9bd6f7", "#b79ae0", "#c9c9c9"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export const isDark = () => document.documentElement.dataset.theme === "dark";
export function look(i) {
  const colors = isDark() ? DARK : LIGHT;
  return { color: colors[i % colors.length], dash: DASHES[Math.floor(i / colors.length) % DASHES.length] };
}
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One table for all lines: uPlot wants the same x for each, with undefined where a line has no point.
function joined(lines) {
  const tables = lines.map(({ x, y, low, high }) => (low ? [x, y, low, high] : [x, y]));
  return tables.length ? uPlot.join(tables) : [[]];
}

const paths = (line) => (line.dots ? { paths: () => null } : line.stairs ? { paths: uPlot.paths.stepped({ align: 1 }) } : {});

export class Chart {
  constructor({ title = "", height = 300, xName = "step", log = false } = {}) {
    this.height = height;
    this.xName = xName;
    this.log = log;
    this.place = el("div");
    this.legend = el("ul", { className: "legend" });
    this.root = el("figure", { className: "chart", style: { margin: 0 } }, title ? el("h3", {}, title) : null, this.place, this.legend);
    this.lines = [];
    this.plot = null;
    this.root.chart = this;
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.root);
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  // lines: [{label, x, y, low, high, look, dots, stairs}]; dots: points without a line between them
  show(lines) {
    this.lines = lines.filter((line) => line.x && line.x.length);
    const shape = JSON.stringify([this.lines.map((l) => [l.label, !!l.low, l.look]), this.log, this.xName, isDark()]);
    if (!this.lines.length) {
      this.drop();
      fill(this.place, el("p", { className: "none" }, "No points yet."));
      fill(this.legend);
      this.shape = null;
      return;
    }
    if (this.plot && shape === this.shape) {
      this.plot.setData(joined(this.lines), !this.zoomed);
      if (this.zoomed) this.plot.redraw();
    }
    else this.draw(shape);
    this.tell();
  }

  draw(shape) {
    this.drop();
    this.shape = shape;
    this.zoomed = false; // a part that the user chose stays while points arrive
    fill(this.place);
    const series = [{}], bands = [];
    for (const line of this.lines) {
      const { color, dash } = line.look;
      const few = line.dots || line.x.length < 40;
      series.push({ stroke: color, width: 1.8, dash, points: { show: few, size: line.dots ? 6 : 4 }, spanGaps: true, ...paths(line) });
      if (line.low) {
        const k = series.length;
        const edge = { stroke: color, width: 0, points: { show: false }, spanGaps: true };
        series.push({ ...edge }, { ...edge });
        bands.push({ series: [k + 1, k], fill: color + (isDark() ? "40" : "2e") });
      }
    }
    const axis = { stroke: css("--faint"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false } };
    const scales = { x: { time: false }, y: { distr: this.log ? 4 : 1 } };
    this.plot = new uPlot({
      width: this.place.clientWidth || 320, height: this.height, series, bands, scales, legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 6 } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(short), label: this.xName, labelSize: 16, labelGap: -4, labelFont: "12px system-ui, sans-serif", size: 30 },
        { ...axis, values: (_, ticks) => ticks.map((t) => (t === null ? "" : short(t))), size: 54 },
      ],
      hooks: {
        setCursor: [() => this.tell()],
        setSelect: [(plot) => { if (plot.select.width > 0) this.zoomed = true; }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => { this.zoomed = false; })],
      },
    }, joined(this.lines), this.place);
  }

  // The legend tells the values below the pointer, or the last ones.
  tell() {
    const at = this.plot && this.plot.cursor.idx, x = at === null || at === undefined ? null : this.plot.data[0][at];
    const items = this.lines.map((line) => {
      let i = line.x.length - 1;
      if (x !== null && x !== undefined) { i = line.x.findIndex((v) => v >= x); if (i < 0) i = line.x.length - 1; }
      const range = line.low ? ` [${number(line.low[i], 3)}, ${number(line.high[i], 3)}]` : "";
      const many = line.of > 1 ? ` (${line.of})` : "";
      return el("li", {}, sample(line.look), el("span", {}, line.label + many), el("b", {}, number(line.y[i]) + range));
    });
    fill(this.legend, items);
  }

  drop() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  close() {
    this.watcher.disconnect();
    this.drop();
  }
}
