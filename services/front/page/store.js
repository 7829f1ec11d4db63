// What this browser keeps: the conversation and the settings. The token stays in the tab.

const CONVERSATION = "ete.conversation";
const SETTINGS = "ete.settings";
const TOKEN = "ete.token";

const unkept = new Map(); // what this browser has no room for, or was told not to keep: until the page is left

// Storages by name: where they are forbidden, looking at one throws.
function read(storage, key) {
  if (unkept.has(key)) return unkept.get(key);
  try {
    return JSON.parse(window[storage].getItem(key));
  } catch {
    return null;
  }
}

// False: there is no room, or this browser keeps nothing.
function write(storage, key, value) {
  try {
    window[storage].setItem(key, JSON.stringify(value));
    unkept.delete(key);
    return true;
  } catch {
    unkept.set(key, value);
    return false;
  }
}

function remove(storage, key) {
  try {
    window[storage].removeItem(key);
  } catch {
    // Where that is forbidden, there is none.
  }
}

const isText = (value) => typeof value === "string";

// The messages of the conversation that was kept; what is no message is left out, and so is a reply that had not begun.
// Each tab goes on with its own, a new one with what any tab said last.
export function loadConversation() {
  const kept = read("sessionStorage", CONVERSATION) ?? read("localStorage", CONVERSATION);
  if (!Array.isArray(kept?.messages)) return [];
  return kept.messages
    .filter((one) => (one?.role === "user" || one?.role === "assistant") && isText(one.content))
    .filter((one) => one.content !== "" || one.reasoning)
    .map((one) => ({
      role: one.role,
      content: one.content,
      reasoning: isText(one.reasoning) ? one.reasoning : "",
      note: isText(one.note) ? one.note : "",
    }));
}

export function saveConversation(messages) {
  const everywhere = write("localStorage", CONVERSATION, { version: 1, messages });
  const here = write("sessionStorage", CONVERSATION, { version: 1, messages });
  // An older one would be read first.
  if (everywhere && !here) remove("sessionStorage", CONVERSATION);
  return here && everywhere;
}

export function loadSettings() {
  const kept = read("localStorage", SETTINGS) ?? {};
  return Object.fromEntries(Object.entries(kept).filter(([, value]) => isText(value)));
}

export const saveSettings = (settings) => write("localStorage", SETTINGS, settings);

export const loadToken = () => read("sessionStorage", TOKEN) ?? "";
export const saveToken = (token) => write("sessionStorage", TOKEN, token);
