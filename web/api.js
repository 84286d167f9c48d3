// The server's addresses: questions by POST, listings by GET, searches as a stream of events.

export class Refused extends Error {
  // What the server said: which word, what is wrong with it, what may be meant.
  constructor(facts, status) {
    super(facts.message);
    this.facts = facts;
    this.status = status;
  }
}

// The server cannot be reached.
export class Gone extends Error {}

async function reach(path, options) {
  try {
    return await fetch(`api/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone(error.message);
  }
}

async function refusalOf(response) {
  const text = await response.text();
  try {
    return new Refused(JSON.parse(text).error, response.status);
  } catch {
    return new Refused({ message: text.slice(0, 300) || response.statusText, suggestions: [] }, response.status);
  }
}

const question = (body, accept, signal) => ({
  method: "POST",
  headers: { "content-type": "application/json", accept },
  body: JSON.stringify(body),
  signal,
});

export async function ask(path, body, signal) {
  const response = await reach(path, question(body, "application/json", signal));
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

export async function known(path) {
  const response = await reach(path, {});
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

// The answer of a search; `hear(name, facts)` is told of each event before it.
export async function search(body, hear, signal) {
  const response = await reach("plan", question(body, "text/event-stream", signal));
  if (!response.ok) throw await refusalOf(response);
  if (!response.headers.get("content-type").startsWith("text/event-stream")) return response.json();
  let last = null; // read to its end, so that the connection is kept
  for await (const [name, facts] of events(response.body)) {
    if (name === "done" || name === "error") last = { name, facts };
    else hear(name, facts);
  }
  if (!last) throw new Gone("the stream ended before its answer");
  if (last.name === "error") throw new Refused(last.facts.error, 422);
  return last.facts;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const found = /^event: (.*)\ndata: (.*)$/s.exec(part);
        if (found) yield [found[1], JSON.parse(found[2])];
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone(error.message);
  }
}
