import { status } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { EnginePicture } from "./engine.js";
import { Settings } from "./settings.js";

const LOOK_EVERY_MS = 1000;
const ANSWER_WITHIN_MS = 5000;
const WORDS = { serving: "ready", loading: "loading", draining: "shutting down", away: "no worker" };

const settings = new Settings(() => look());
new Chat(settings);
const picture = new EnginePicture(byId("engine"));

function tell(state, text) {
  byId("state").dataset.state = state;
  if (byId("state-text").textContent !== text) byId("state-text").textContent = text;
}

async function look() {
  try {
    const now = await status(AbortSignal.timeout(ANSWER_WITHIN_MS));
    const percent = now.state === "loading" ? ` ${Math.floor(100 * now.load.fraction)} %` : "";
    tell(now.state, `${WORDS[now.state] ?? now.state}${percent}`);
    if (now.model) byId("title").textContent = now.model;
    picture.draw(now);
  } catch (error) {
    tell("away", "no answer");
    picture.fail(error.message);
  }
}

// One look after the other, and none while nobody sees the page.
async function watch() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, LOOK_EVERY_MS));
  }
}

const toggle = byId("toggle-engine");
const wide = matchMedia("(min-width: 60rem)");

function showEngine(shown) {
  document.body.classList.toggle("with-engine", shown);
  toggle.setAttribute("aria-expanded", String(shown));
}

toggle.addEventListener("click", () => showEngine(toggle.getAttribute("aria-expanded") !== "true"));
wide.addEventListener("change", () => showEngine(wide.matches));
showEngine(wide.matches);
byId("prompt").focus();
watch();
