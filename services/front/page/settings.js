// The settings dialog: what a request is given besides the conversation.

import { byId, element } from "./dom.js";
import { loadSettings, loadToken, saveSettings, saveToken } from "./store.js";

// An empty field leaves it to the server.
const FIELDS = [
  { name: "temperature", label: "Temperature", hint: "0: always the best token", least: 0, most: 100 },
  { name: "top_p", label: "Top-p", hint: "above 0, at most 1", least: 0, most: 1, above: true },
  { name: "max_tokens", label: "Most tokens of a reply", hint: "a whole number", least: 1, most: 2 ** 31 - 1, whole: true },
  { name: "seed", label: "Seed", hint: "the same seed, the same reply", least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
];

// Why a value is refused; empty: it is fine.
function objection(field, text) {
  if (text.trim() === "") return "";
  const value = Number(text);
  const low = field.above ? value <= field.least : value < field.least;
  if (Number.isFinite(value) && !low && value <= field.most && (!field.whole || Number.isInteger(value))) return "";
  const kind = field.whole ? "a whole number" : "a number";
  const range = field.above ? `above ${field.least}, at most ${field.most}` : `from ${field.least} to ${field.most}`;
  return `${text} is not accepted; expected ${kind} ${range}, or nothing`;
}

// Likewise of a token. What no header can carry would fail as if the server were gone.
function tokenObjection(text) {
  return /^[\x21-\x7e]*$/.test(text) ? "" : "This is no token; expected printable ASCII without blanks, or nothing";
}

export class Settings {
  // onSaved: called after each change.
  constructor(onSaved) {
    this.onSaved = onSaved;
    this.dialog = byId("settings");
    this.token = { name: "token", hint: byId("token-note").textContent };
    this.dialog.querySelector(".fields").append(...FIELDS.map((field) => this.#field(field)));
    byId("open-settings").addEventListener("click", () => this.open());
    byId("settings-cancel").addEventListener("click", () => this.dialog.close());
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    window.addEventListener("storage", () => this.#load()); // another tab saved its own
    this.#load();
  }

  open() {
    byId("system").value = this.values.system ?? "";
    byId("theme").value = this.values.theme ?? "auto";
    byId("token").value = loadToken();
    this.#object(this.token, "");
    for (const field of FIELDS) {
      byId(field.name).value = this.values[field.name] ?? "";
      this.#object(field, "");
    }
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
  }

  // The members of a request.
  request() {
    const given = FIELDS.filter((field) => this.values[field.name]);
    return Object.fromEntries(given.map((field) => [field.name, Number(this.values[field.name])]));
  }

  get system() {
    return this.values.system ?? "";
  }

  #field(field) {
    const note = `${field.name}-note`;
    const input = element("input", { id: field.name, inputmode: "decimal", autocomplete: "off", "aria-describedby": note });
    return element(
      "div",
      { class: "field" },
      element("label", { for: field.name, text: field.label }),
      input,
      element("p", { id: note, class: "note", text: field.hint }),
    );
  }

  #object(field, why) {
    const input = byId(field.name);
    const note = byId(`${field.name}-note`);
    input.toggleAttribute("aria-invalid", why !== "");
    if (why !== "") input.setAttribute("aria-invalid", "true");
    note.textContent = why || field.hint;
    note.classList.toggle("error", why !== "");
  }

  #load() {
    this.values = loadSettings();
    this.#applyTheme();
  }

  #save() {
    let wrong = null;
    for (const field of FIELDS) {
      const why = objection(field, byId(field.name).value);
      this.#object(field, why);
      if (why !== "" && wrong === null) wrong = byId(field.name);
    }
    const token = byId("token").value.trim();
    const why = tokenObjection(token);
    this.#object(this.token, why);
    if (why !== "") wrong ??= byId("token");
    if (wrong !== null) return wrong.focus();
    this.values = { system: byId("system").value, theme: byId("theme").value };
    for (const field of FIELDS) this.values[field.name] = byId(field.name).value.trim();
    saveSettings(this.values);
    saveToken(token);
    this.#applyTheme();
    this.dialog.close();
    this.onSaved();
  }

  #applyTheme() {
    const theme = this.values.theme;
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }
}
