// The server's side: OpenAI's chat completions as a stream, and the engine's status.

import { loadToken } from "./store.js";

const GONE = "the server does not answer: it is gone, or the network is";
const CUT = "the connection ended before the reply did";

function headers() {
  const token = loadToken();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// What the server said about a request that it refused.
async function refusal(response) {
  let message = `the server answered with status ${response.status}`;
  try {
    const body = await response.json();
    message = body.error?.message ?? message;
  } catch {
    // It said nothing that can be shown.
  }
  if (response.status === 401) message += ". Its token goes into the settings.";
  return new Error(message);
}

// Browsers say of a connection that fails no more than "Failed to fetch", of one that takes too long "signal timed out", each
// in words of its own.
async function connected(promise, signal, what) {
  try {
    return await promise;
  } catch (error) {
    const failed = error instanceof TypeError && !signal.aborted;
    throw failed || error.name === "TimeoutError" ? new Error(what) : error;
  }
}

async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await connected(reader.read(), signal, CUT);
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice("data: ".length);
    }
  }
}

// The parts of a reply: {progress}, {text}, {reasoning}, {reason}, {usage}. Throws when the server refuses, when it
// fails on the way, and when `signal` is aborted.
export async function* reply(request, signal) {
  const asked = fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, return_progress: true }),
    signal,
  });
  const response = await connected(asked, signal, GONE);
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response.body, signal)) {
    if (event === "[DONE]") return;
    const part = JSON.parse(event);
    if (part.error) throw new Error(part.error.message);
    if (part.prompt_progress) yield { progress: part.prompt_progress };
    if (part.usage) yield { usage: part.usage };
    const choice = part.choices?.[0];
    if (choice?.delta?.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
    if (choice?.delta?.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { reason: choice.finish_reason };
  }
  throw new Error(CUT);
}

export async function status(signal) {
  const response = await connected(fetch("/status", { headers: headers(), signal }), signal, GONE);
  if (!response.ok) throw await refusal(response);
  return connected(response.json(), signal, GONE);
}
