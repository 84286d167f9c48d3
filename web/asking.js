// From a key pressed to an answer: one search at a time, the newest question wins.
import { Gone, Refused, ask, search } from "./api.js";
import { bodyOf, isWhole, linkOf } from "./question.js";
import { abandon, change, forget, state } from "./store.js";

const AFTER_LAST_KEY_MS = 250;
const SHOWN_FROM_MS = 300;
const MOST_LINK_LETTERS = 8192;

let timer = 0;
let current = null; // {controller, id}

export function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(askNow, AFTER_LAST_KEY_MS);
}

export async function askNow(plan = 1) {
  clearTimeout(timer);
  leave();
  abandon("explain-quick", "explain", "against", "moved");
  if (!isWhole(state.question)) return change({ error: null, running: null });
  const body = bodyOf(state.question);
  const mine = { controller: new AbortController(), id: null, isStopped: false };
  current = mine;
  writeLink(plan);
  const running = { started: performance.now(), seconds: 0, isShown: false, body };
  change({ running });
  const shown = setInterval(() => {
    if (current !== mine) return clearInterval(shown);
    Object.assign(running, { isShown: true, clock_s: (performance.now() - running.started) / 1e3 });
    change({ running });
  }, SHOWN_FROM_MS);
  const hear = (name, facts) => {
    if (name === "started") mine.id = facts.search;
    else if (current === mine) change({ running: Object.assign(running, facts) });
  };
  try {
    const answer = await search(body, hear, mine.controller.signal);
    if (current === mine) take(answer, body, plan, mine.isStopped);
  } catch (error) {
    if (error.name !== "AbortError" && current === mine) change({ error: said(error), running: null });
  } finally {
    clearInterval(shown);
    if (current === mine) current = null;
  }
}

// What belonged to the answer that was shown.
export function forgetAnswer() {
  forget("charts", "timeline", "explain-quick", "explain", "against", "edited", "export", "moved", "moved-frontier", "answer-charts",
    "changes", "trace");
}

function take(answer, body, plan, isStopped) {
  forgetAnswer();
  const rank = plan <= answer.plans.length ? plan : 1;
  change({
    answer, body, isStopped, plan: rank, beside: null, edits: null, tried: [], zoom: null, whatIf: {},
    error: null, running: null,
  });
}

// A search that nobody waits for any longer is asked to end; it gives its process to the next.
function leave() {
  if (!current) return;
  if (current.id) ask("stop", { search: current.id }).catch(() => undefined); // it may be over
  else current.controller.abort();
  current = null;
}

// The best so far becomes the answer.
export function stopSearch() {
  if (!current?.id) return;
  current.isStopped = true;
  ask("stop", { search: current.id }).catch((error) => change({ error: said(error) }));
}

export function said(error) {
  if (error instanceof Gone) return { kind: "gone", message: error.message };
  if (!(error instanceof Refused)) return { kind: "fault", message: `A fault of this page: ${error.message}`, details: error.stack };
  if (error.status === 429) return { kind: "busy", message: error.message };
  return { kind: error.status >= 500 || /^a fault of Astra/.test(error.message) ? "fault" : "refused", ...error.facts };
}

export async function writeLink(plan = state.plan) {
  const link = await linkOf(state.question, plan);
  if (link.length <= MOST_LINK_LETTERS) history.replaceState(null, "", `#${link}`);
  return link.length <= MOST_LINK_LETTERS;
}
