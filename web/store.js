// What the page knows, and its drawing: once a frame, after anything has changed.
import { emptyQuestion } from "./question.js";

export const state = {
  question: emptyQuestion(),
  known: { models: [], gpus: [], prices: [], choices: {} },
  answer: null, // the last good one
  body: null, // the question that it answers
  running: null, // a search under way: what it has said
  error: null, // of the question as it stands: {message, field, suggestions}, and what kind
  plan: 1, // the rank that is looked at
  beside: null, // and the rank beside it
  sort: { by: "rank", down: false },
  filter: "",
  edits: null, // settings of a plan that a person tries
  tried: [], // such plans, as they were priced
  zoom: null, // [from_s, to_s] of the timeline
  width: 0, // of the column of cards
  job: null, // what was dropped: a script, a log or a result
  whatIf: {},
  exporting: { to: null, launcher: "torchrun", file: null },
  isMoreOpen: false,
  areKeysOpen: false,
  said: "", // a short notice: "Copied"
};

let drawPage = () => undefined;
let isDue = false;

export const drawWith = (draw) => (drawPage = draw);

export function draw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    drawPage();
  });
}

export function change(part) {
  Object.assign(state, part);
  draw();
}

// Answers that belong to what is shown: each place keeps its last one until the next is there, and
// asks one question at a time, so that walking through plans is no queue of questions.
const places = new Map();

export function remote(place, key, ask) {
  const before = places.get(place);
  if (before?.key === key) return before;
  if (before?.controller || state.running) return { ...before, isOld: true }; // asked when that is done
  const controller = new AbortController();
  const now = { key, controller, value: before?.value, isOld: true, error: null };
  places.set(place, now);
  ask(controller.signal).then(
    (value) => Object.assign(now, { value, isOld: false, controller: null }),
    (error) => Object.assign(now, { error, isOld: false, controller: null }),
  ).then(draw);
  return now;
}

// What was asked there is not waited for, and what was answered is of no more use.
export function forget(...names) {
  for (const name of names) {
    places.get(name)?.controller?.abort();
    places.delete(name);
  }
}

// Long questions end at once, so that another is not kept waiting; what they said before stays.
export function abandon(...names) {
  for (const name of names) {
    const at = places.get(name);
    if (!at?.controller) continue;
    at.controller.abort();
    places.set(name, { ...at, key: null, controller: null, isOld: true });
  }
}
