// The engine as it is now: where its layers lie, who decodes, what the link carries, and memory against the plan.

import { drawing, element } from "./dom.js";

const HISTORY = 60; // looks
const MOST_CELLS = 128;
const WIDTH = 300;
const HEIGHT = 48;

function bytes(count) {
  let value = count;
  let unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const count = (value, one, many = `${one}s`) => `${value} ${value === 1 ? one : many}`;
const rate = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));

// A figure over the last minute, and the most that it reached.
class Curve {
  constructor(title, text) {
    this.text = text;
    this.values = [];
    this.figure = element("span", { class: "figure" });
    this.line = drawing("polyline", { class: "line" });
    this.area = drawing("polygon", { class: "area" });
    this.node = element(
      "div",
      { class: "curve" },
      element("h3", {}, title, this.figure),
      drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line),
    );
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > HISTORY) this.values.shift();
    const most = Math.max(...this.values);
    const y = (one) => HEIGHT - 2 - (most > 0 ? (one / most) * (HEIGHT - 6) : 0);
    const first = HISTORY - this.values.length;
    const points = this.values.map((one, i) => [((first + i) * WIDTH) / (HISTORY - 1), y(one)]);
    const text = points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ");
    this.line.setAttribute("points", text);
    this.area.setAttribute("points", `${points[0][0].toFixed(1)},${HEIGHT} ${text} ${WIDTH},${HEIGHT}`);
    this.figure.textContent = `${this.text(value)}, most ${this.text(most)}`;
  }
}

// A part of a whole: role meter.
class Bar {
  constructor(title) {
    this.title = title;
    this.figure = element("span", { class: "figure" });
    this.filled = element("div", { class: "filled" });
    this.track = element("div", { class: "track", role: "meter", "aria-label": title, "aria-valuemin": 0 }, this.filled);
    this.node = element("div", { class: "bar" }, element("h3", {}, title, this.figure), this.track);
  }

  draw(used, whole) {
    const part = whole > 0 ? Math.min(1, used / whole) : 0;
    this.filled.style.width = `${(100 * part).toFixed(1)}%`;
    this.track.classList.toggle("full", part > 0.95);
    this.figure.textContent = `${bytes(used)} of ${bytes(whole)}`;
    this.track.setAttribute("aria-valuemax", whole);
    this.track.setAttribute("aria-valuenow", Math.min(used, whole));
    this.track.setAttribute("aria-valuetext", this.figure.textContent);
    this.node.hidden = whole === 0;
  }
}

// A row of cells, each of a kind.
class Cells {
  constructor(title) {
    this.caption = element("span", { class: "figure" });
    this.row = element("div", { class: "cells", "aria-hidden": "true" });
    this.node = element("div", { class: "cellbox" }, element("h3", {}, title, this.caption), this.row);
  }

  draw(kinds, caption) {
    this.caption.textContent = caption;
    const shown = kinds.slice(0, MOST_CELLS);
    while (this.row.children.length > shown.length) this.row.lastElementChild.remove();
    while (this.row.children.length < shown.length) this.row.append(element("i"));
    shown.forEach((kind, i) => {
      if (this.row.children[i].className !== kind) this.row.children[i].className = kind;
    });
  }
}

export class EnginePicture {
  constructor(container) {
    this.last = null; // the look before: {at, status}
    this.device = element("p", { class: "note" });
    this.load = new Bar("Loading");
    this.loadText = element("p", { class: "note" });
    this.layers = new Cells("Layers");
    this.slots = new Cells("Slots");
    this.sessions = new Cells("Sessions");
    this.batch = element("p", { class: "note" });
    this.decode = new Curve("Decode, tokens/s", rate);
    this.prefill = new Curve("Prompts, tokens/s", rate);
    this.link = new Curve("Link", (value) => `${bytes(value)}/s`);
    this.linkNote = element("p", { class: "note" });
    this.deviceMemory = element("div", { class: "stack" });
    this.kv = new Bar("Sessions' cache");
    this.prefixes = new Bar("Cached prefixes");
    this.host = new Bar("Host memory");
    this.failure = element("p", { class: "note error" });
    this.loading = element("section", { hidden: true }, this.load.node, this.loadText);
    this.picture = element(
      "div",
      { hidden: true },
      this.layers.node,
      this.slots.node,
      this.sessions.node,
      this.batch,
      this.decode.node,
      this.prefill.node,
      this.link.node,
      this.linkNote,
      this.deviceMemory,
      this.kv.node,
      this.prefixes.node,
      this.host.node,
    );
    container.append(element("h2", { text: "Engine" }), this.failure, this.device, this.loading, this.picture);
  }

  fail(message) {
    this.failure.textContent = message;
    this.picture.hidden = this.loading.hidden = true;
    this.last = null;
  }

  draw(status) {
    this.failure.textContent = status.why ?? "";
    this.loading.hidden = status.state !== "loading";
    if (status.state === "loading") this.#drawLoading(status.load);
    const plan = status.plan;
    this.picture.hidden = status.state !== "serving" || !plan;
    if (this.picture.hidden) {
      this.last = null;
      return;
    }
    this.device.textContent = `${plan.device_name}, ${plan.kernels}, ${count(plan.threads, "thread")}`;
    const delta = this.#since(status);
    this.#drawLayers(plan, delta.passes > 0);
    this.#drawSessions(status, plan, delta);
    this.#drawLink(plan, delta);
    this.#drawMemory(status, plan);
  }

  #drawLoading(load) {
    this.load.figure.textContent = `${Math.floor(100 * load.fraction)} %`;
    this.load.filled.style.width = `${(100 * load.fraction).toFixed(1)}%`;
    this.load.track.setAttribute("aria-valuemax", 1);
    this.load.track.setAttribute("aria-valuenow", load.fraction);
    this.loadText.textContent = load.step;
  }

  // What happened since the look before; nothing of another worker, nor after a pause.
  #since(status) {
    const at = performance.now();
    const before = this.last;
    this.last = { at, status };
    const known = before !== null && before.status.worker_id === status.worker_id && at - before.at < 10000;
    const seconds = known ? (at - before.at) / 1000 : 1;
    const grown = (name) => (known ? Math.max(0, status[name] - before.status[name]) : 0);
    return { seconds, passes: grown("passes"), decode: grown("decode_rows"), prefill: grown("prefill_rows") };
  }

  #drawLayers(plan, busy) {
    const streamed = plan.layers - plan.resident_layers;
    const kinds = Array.from({ length: plan.layers }, (_, i) => (i < plan.resident_layers ? "on" : "off"));
    this.layers.draw(kinds, streamed === 0 ? `${plan.layers}, all resident` : `${plan.resident_layers} resident, ${streamed} streamed`);
    this.slots.node.hidden = plan.slots === 0;
    this.slots.draw(Array(plan.slots).fill(busy ? "on moving" : "off"), `${plan.slots}, ${busy ? "in use" : "idle"}`);
  }

  #drawSessions(status, plan, delta) {
    const free = Math.max(0, plan.max_sessions - status.sessions);
    const kinds = [...Array(status.sessions).fill("on"), ...Array(free).fill("off"), ...Array(status.queued).fill("waits")];
    const waits = status.queued > 0 ? `, ${status.queued} waiting` : "";
    this.sessions.draw(kinds, `${status.sessions} of ${plan.max_sessions}${waits}`);
    const rows = delta.passes > 0 ? (delta.decode + delta.prefill) / delta.passes : 0;
    this.batch.textContent =
      delta.passes > 0
        ? `${rate(delta.passes / delta.seconds)} passes/s of ${count(Number(rows.toFixed(1)), "row")}, the last in ${status.last_pass_ms.toFixed(1)} ms`
        : `idle after ${count(status.passes, "pass", "passes")}`;
    this.decode.add(delta.decode / delta.seconds);
    this.prefill.add(delta.prefill / delta.seconds);
  }

  #drawLink(plan, delta) {
    const streams = plan.streamed_bytes_per_pass > 0;
    this.link.node.hidden = !streams;
    this.linkNote.textContent = streams ? `${bytes(plan.streamed_bytes_per_pass)} of weights a pass` : "Link: idle, since every layer is resident.";
    const each = delta.prefill > 0 ? plan.prompt_streamed_bytes_per_pass : plan.streamed_bytes_per_pass;
    this.link.add((delta.passes * each) / delta.seconds);
  }

  #drawMemory(status, plan) {
    const session = plan.kv_bytes_per_session + plan.state_bytes_per_session;
    this.#drawDevice(plan);
    this.kv.draw(status.session_bytes, session * plan.max_sessions);
    this.prefixes.draw(status.prefix_cache.bytes, plan.prefix_cache_bytes);
    this.host.draw(status.resident_set_bytes, plan.peak_host_bytes);
  }

  // The plan's parts of device memory, side by side.
  #drawDevice(plan) {
    const whole = plan.peak_device_bytes;
    const key = JSON.stringify(plan);
    if (key === this.drawnPlan) return;
    this.drawnPlan = key;
    const resident = Math.min(plan.resident_bytes, whole);
    const activations = Math.min(plan.activation_bytes, whole - resident);
    const parts = [
      ["resident weights", resident],
      ["activations", activations],
      [plan.slots > 0 ? "slots, cache and the rest" : "cache and the rest", whole - resident - activations],
    ];
    const track = element("div", { class: "track", "aria-hidden": "true" });
    parts.forEach(([, size], i) => {
      const part = element("div", { class: `part part${i}` });
      part.style.width = `${whole > 0 ? ((100 * size) / whole).toFixed(2) : 0}%`;
      track.append(part);
    });
    const legend = parts.map(([name, size], i) =>
      element("li", {}, element("i", { class: `part${i}`, "aria-hidden": "true" }), `${name} ${bytes(size)}`),
    );
    this.deviceMemory.replaceChildren(
      element("h3", {}, "Device memory, planned", element("span", { class: "figure", text: bytes(whole) })),
      track,
      element("ul", {}, ...legend),
    );
  }
}
