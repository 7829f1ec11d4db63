// The server's side: OpenAI's chat completions as a stream, and the engine's status.

import { loadToken } from "./store.js";

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

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
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
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, return_progress: true }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response.body)) {
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
  throw new Error("the connection ended before the reply did");
}

export async function status(signal) {
  const response = await fetch("/status", { headers: headers(), signal });
  if (!response.ok) throw await refusal(response);
  return response.json();
}
