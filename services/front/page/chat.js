// The conversation: what was said, the reply that is being written, and what can be done with it.

import { reply } from "./api.js";
import { announce, byId, element } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { loadConversation, saveConversation } from "./store.js";

const NAMES = { user: "You", assistant: "Model" };
const DRAW_EVERY_MS = 60;
const CUT_OFF = "cut off";
const REASONS = { length: "cut at the most tokens", content_filter: "filtered" };

const LEAST_TO_READ = 128; // tokens; fewer are read before anybody has seen the line
const LEAST_READING_MS = 1000; // what took less says little about the rest

// "Reading the prompt: 40 %, about 12 s left", or nothing.
function readingText({ total, cache, processed, time_ms: time }) {
  if (total - cache < LEAST_TO_READ || processed >= total) return "";
  const text = `Reading the prompt: ${Math.floor((100 * processed) / total)} %`;
  const seconds = Math.ceil((time * (total - processed)) / (processed - cache) / 1000);
  if (time < LEAST_READING_MS || processed <= cache) return text;
  return `${text}, about ${seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`} left`;
}

// A reply that begins with <think> shows what follows as its reasoning.
function splitReasoning(message) {
  const open = /^\s*<think>/.exec(message.content);
  if (!open) return { reasoning: message.reasoning, content: message.content };
  const end = message.content.indexOf("</think>");
  const stop = end < 0 ? message.content.length : end;
  return {
    reasoning: message.reasoning + message.content.slice(open[0].length, stop),
    content: end < 0 ? "" : message.content.slice(end + "</think>".length),
  };
}

class MessageView {
  constructor(message) {
    this.message = message;
    this.body = element("div", { class: "body" });
    this.note = element("p", { class: "note" });
    this.node = element(
      "li",
      { class: message.role },
      element("p", { class: "name", text: NAMES[message.role] }),
      this.body,
      this.note,
    );
    this.draw();
  }

  // Of the prompt; it stands beside the cursor, and takes no room.
  showReading(progress) {
    const text = progress === null ? "" : readingText(progress);
    if (text === "") {
      this.reading?.remove();
      this.reading = undefined;
      return;
    }
    if (this.reading === undefined) {
      this.reading = element("p", { class: "reading", role: "progressbar", "aria-label": "Reading the prompt" });
      this.body.after(this.reading);
    }
    this.reading.textContent = text;
    this.reading.setAttribute("aria-valuenow", String(Math.floor((100 * progress.processed) / progress.total)));
    this.reading.setAttribute("aria-valuetext", text);
  }

  draw() {
    this.note.textContent = this.busy ? "" : this.message.note;
    if (this.message.role === "user") {
      this.body.textContent = this.message.content;
      return;
    }
    const { reasoning, content } = splitReasoning(this.message);
    if (reasoning.trim() !== "" && this.reasoning === undefined) {
      this.reasoning = element("div");
      this.node.insertBefore(
        element("details", {}, element("summary", { text: "Reasoning" }), this.reasoning),
        this.body,
      );
    }
    if (this.reasoning !== undefined) renderMarkdown(this.reasoning, reasoning);
    renderMarkdown(this.body, content);
  }

  setBusy(busy) {
    this.busy = busy;
    if (!busy) this.showReading(null);
    this.node.classList.toggle("busy", busy);
    this.node.setAttribute("aria-busy", String(busy));
    this.draw();
  }
}

export class Chat {
  constructor(settings) {
    this.settings = settings;
    this.kept = true;
    this.running = null; // the AbortController of the reply that is being written
    this.log = byId("log");
    this.scroller = byId("scroller");
    this.prompt = byId("prompt");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    this.prompt.addEventListener("input", () => this.#grow());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("settings").open) this.stop();
    });
    window.addEventListener("pagehide", () => {
      if (this.running === null || this.messages.length === 0) return;
      this.messages.at(-1).note = "stopped";
      this.#keep();
      this.stop(); // or it would seem to have failed
    });
    window.addEventListener("pageshow", (event) => {
      if (event.persisted) this.#goOn(); // the tab may have gone on without it
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && this.running !== null) this.#keep(); // a phone ends what is hidden without a word
    });
    this.#goOn();
  }

  send() {
    const text = this.prompt.value.trim();
    if (text === "" || this.running) return;
    this.prompt.value = "";
    this.#grow();
    this.prompt.focus(); // the button goes
    this.#add({ role: "user", content: text, reasoning: "", note: "" });
    this.#answer();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.#keep();
    this.#drawAll();
    announce("The conversation is empty.");
    this.prompt.focus();
  }

  // The last reply once more.
  retry() {
    if (this.running) return;
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    if (this.messages.length === 0) return;
    this.#drawAll();
    this.prompt.focus();
    this.#answer();
  }

  // The last thing said goes back into the field.
  edit() {
    if (this.running) return;
    const last = this.messages.findLastIndex((message) => message.role === "user");
    if (last < 0) return;
    // What was begun of a reply goes with it; what stands in the field does not.
    this.prompt.value = [this.messages[last].content, this.prompt.value].filter((text) => text.trim() !== "").join("\n\n");
    this.messages.length = last;
    this.#grow();
    this.#keep();
    this.#drawAll();
    this.prompt.focus();
  }

  // With what was kept.
  #goOn() {
    this.messages = loadConversation();
    this.#drawAll();
  }

  #request() {
    const system = this.settings.system.trim();
    const turns = [];
    for (const { role, content } of this.messages) {
      // Many templates refuse a turn behind another of the same role, as behind one that got no answer.
      if (turns.at(-1)?.role === role) turns.at(-1).content += `\n\n${content}`;
      else turns.push({ role, content });
    }
    return {
      messages: system === "" ? turns : [{ role: "system", content: system }, ...turns],
      ...this.settings.request(),
    };
  }

  async #answer() {
    const request = this.#request();
    const message = { role: "assistant", content: "", reasoning: "", note: CUT_OFF }; // until it has ended
    const view = this.#add(message);
    const controller = new AbortController();
    this.#begin(controller, view);
    const draws = setInterval(() => this.#redraw(view), DRAW_EVERY_MS);
    let error = null;
    try {
      message.note = await this.#read(request, controller.signal, view);
    } catch (failure) {
      if (controller.signal.aborted) message.note = "stopped";
      else error = failure;
    }
    clearInterval(draws);
    if (message.content === "" && message.reasoning === "") this.#drop(message, view);
    this.#end(controller, view);
    if (error !== null) this.#fail(error.message);
    else announce(`${NAMES.assistant}: ${message.content} ${message.note}`);
  }

  // What is to be said of the reply once it has ended.
  async #read(request, signal, view) {
    const message = view.message;
    const began = performance.now();
    let first = 0;
    let last = 0;
    let usage = null;
    let reason = "";
    for await (const part of reply(request, signal)) {
      if (part.progress !== undefined) view.showReading(part.progress);
      if (part.text !== undefined) message.content += part.text;
      if (part.reasoning !== undefined) message.reasoning += part.reasoning;
      if (part.text !== undefined || part.reasoning !== undefined) last = performance.now();
      if (first === 0 && last > 0) {
        first = last;
        view.showReading(null);
      }
      usage = part.usage ?? usage;
      reason = part.reason ?? reason;
    }
    const said = [];
    if (usage) said.push(`${usage.completion_tokens} ${usage.completion_tokens === 1 ? "token" : "tokens"}`);
    if (usage?.completion_tokens > 1 && last > first) {
      said.push(`${((1000 * (usage.completion_tokens - 1)) / (last - first)).toFixed(1)} tokens/s`);
    }
    if (first > 0) said.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    if (usage) said.push(`prompt of ${usage.prompt_tokens}${cached ? `, ${cached} reused` : ""}`);
    if (REASONS[reason]) said.push(REASONS[reason]);
    return said.join(" · ");
  }

  #begin(controller, view) {
    this.running = controller;
    this.#clearExtras();
    view.setBusy(true);
    byId("send").hidden = true;
    byId("stop").hidden = false;
    announce("The reply is being written.");
    this.#follow(true);
  }

  #end(controller, view) {
    view.setBusy(false);
    // Another conversation may have begun meanwhile.
    if (this.running !== controller) return;
    const wasOnStop = document.activeElement === byId("stop");
    this.running = null;
    byId("send").hidden = false;
    byId("stop").hidden = true;
    if (wasOnStop) this.prompt.focus();
    this.#keep();
    this.#offerRetry();
    this.#follow(false);
  }

  #fail(text) {
    this.#clearExtras();
    this.log.after(element("div", { class: "failure", role: "alert" }, element("p", { text }), ...this.#remedies()));
    this.#follow(true);
  }

  #remedies() {
    return [
      element("button", { type: "button", text: "Try again", onclick: () => this.retry() }),
      element("button", { type: "button", text: "Edit the message", onclick: () => this.edit() }),
    ];
  }

  #offerRetry() {
    this.#clearExtras();
    const role = this.messages.at(-1)?.role;
    const offered = {
      user: () => [element("p", { class: "note", text: "This message has no answer yet." }), ...this.#remedies()],
      assistant: () => [element("button", { type: "button", text: "Reply again", onclick: () => this.retry() })],
    };
    if (role === undefined) return;
    const lost = this.kept ? [] : [element("p", { class: "note", text: "This browser does not keep the conversation." })];
    this.log.after(element("div", { class: "again" }, ...offered[role](), ...lost));
  }

  #clearExtras() {
    for (const extra of this.scroller.querySelectorAll(".failure, .again")) extra.remove();
  }

  #drop(message, view) {
    this.messages = this.messages.filter((one) => one !== message);
    view.node.remove();
    this.#showEmpty();
  }

  #add(message) {
    this.messages.push(message);
    const view = new MessageView(message);
    this.log.append(view.node);
    this.#showEmpty();
    this.#keep();
    this.#follow(true);
    return view;
  }

  #drawAll() {
    this.log.replaceChildren(...this.messages.map((message) => new MessageView(message).node));
    this.#showEmpty();
    this.#offerRetry();
    this.#follow(true);
  }

  #redraw(view) {
    view.draw();
    this.#follow(false);
  }

  #showEmpty() {
    byId("empty").hidden = this.messages.length > 0;
  }

  // Down to the end, unless somebody has scrolled up to read.
  #follow(always) {
    const box = this.scroller;
    const near = box.scrollHeight - box.scrollTop - box.clientHeight < 120;
    if (always || near) box.scrollTop = box.scrollHeight;
  }

  #grow() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight + 2}px`;
  }

  #keep() {
    this.kept = saveConversation(this.messages);
  }
}
