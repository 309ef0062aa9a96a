// The stream of the server: one at a time, opened again when a page shows something else.
// The browser connects again by itself and says which event it saw last, so that nothing is missed or doubled.

export class Live {
  constructor(onState) {
    this.runs = new Map();
    this.about = { benches: 0, relays: 0, cut: false };
    this.listeners = new Set();
    this.onState = onState;
    this.source = null;
    this.onLine = () => {};
  }

  // lines: [[run, ...], ...], a line for each; of several runs, their mean.
  open({ lines = [], x = "step", ys = [], points = 2000, onLine = () => {} } = {}) {
    const query = new URLSearchParams({
      lines: lines.map((runs) => runs.join(" ")).join(","), x, y: JSON.stringify(ys), points: String(points),
    });
    this.onLine = onLine;
    if (this.query === String(query) && this.source) return;
    this.query = String(query);
    this.connect();
  }

  connect() {
    this.close();
    const source = (this.source = new EventSource(`/api/live?${this.query}`));
    source.addEventListener("hello", () => this.onState(true));
    source.addEventListener("runs", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("line", (event) => this.onLine(JSON.parse(event.data)));
    source.onerror = () => {
      this.onState(false);
      // After a refusal the browser gives up: then everything is asked for anew.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.source === source && this.connect(), 2000);
    };
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }

  take(told) {
    const before = JSON.stringify([...this.runs.values(), this.about]);
    if (told.all) this.runs.clear();
    for (const run of told.runs) this.runs.set(run.id, run);
    for (const id of told.gone) this.runs.delete(id);
    this.about = { benches: told.benches, relays: told.relays, cut: told.cut };
    // A stream that was opened again tells everything again: what is on the screen stays as it is.
    if (this.known && before === JSON.stringify([...this.runs.values(), this.about])) return;
    this.known = true;
    for (const listener of this.listeners) listener();
  }
}
