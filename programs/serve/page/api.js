/* Requests to the server. Paths are relative, so the page also works below a path of a proxy. */

/* An error with `status` 0 came from the network: the server was not reached or stopped. */
export class ServerError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let key = "";
export const setKey = value => {
  key = value;
};

const request = async (path, options = {}) => {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  let reply;
  try {
    reply = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (reply.ok) return reply;
  const {error} = await reply.json().catch(() => ({}));
  throw new ServerError(
    error?.message || reply.statusText || `status ${reply.status}`, reply.status, error?.code);
};
const post = (path, body, signal) =>
  request(path, {method: "POST", body: JSON.stringify(body), signal});

export const getModels = async () => (await (await request("v1/models")).json()).data;
export const getSlots = async () => (await request("slots")).json();
export const countTokens = async (text, model) =>
  (await (await post("tokenize", {content: text, model})).json()).tokens.length;

/* The objects of a stream of server-sent events. `parts` yields strings. */
export async function* parseEvents(parts) {
  let rest = "";
  for await (const part of parts) {
    rest += part.replaceAll("\r", "");
    for (let at; (at = rest.indexOf("\n\n")) >= 0; rest = rest.slice(at + 2)) {
      const data = rest.slice(0, at)
                     .split("\n")
                     .filter(line => line.startsWith("data:"))
                     .map(line => line.slice(5).trimStart())
                     .join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function* textOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The connection to the server broke.");
    }
    if (part.done) return;
    yield part.value;
  }
}

/* Stream an answer: yields {progress}, {thoughts}, {text} and, at the end, {finish, timings, cache}. */
export async function* streamAnswer(body, signal) {
  const reply =
    await post("v1/chat/completions", {...body, stream: true, return_progress: true}, signal);
  for await (const event of parseEvents(textOf(reply))) {
    if (event.error) throw new ServerError(event.error.message, 500, event.error.code);
    if (event.prompt_progress) yield {progress: event.prompt_progress};
    const choice = event.choices?.[0];
    if (choice?.delta?.reasoning_content) yield {thoughts: choice.delta.reasoning_content};
    if (choice?.delta?.content) yield {text: choice.delta.content};
    if (choice?.finish_reason) {
      yield {finish: choice.finish_reason, timings: event.timings, cache: event.cache};
      return;
    }
  }
  throw new ServerError("The connection to the server broke.");
}
