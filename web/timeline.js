// One step, stage by stage: the whole of it or a part; what an operation is, under the pointer.
import { html, nothing } from "lit-html";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { card, choices } from "./card.js";
import { numbers, picture, planCharts, timelineChart } from "./charts.js";
import { seconds } from "./format.js";
import { hideTip, showTip } from "./hover.js";
import { change, remote, state } from "./store.js";

const PART = 0.09; // of the step, that Start, Middle and End show
const LEAST_PART = 1e-4;

const spans = (step_s) => ({
  whole: null,
  start: [0, PART * step_s],
  middle: [(0.5 - PART / 2) * step_s, (0.5 + PART / 2) * step_s],
  end: [(1 - PART) * step_s, step_s],
});

function part() {
  const { zoom } = state, all = spans(shown().step_s);
  return Object.keys(all).find((name) => JSON.stringify(all[name]) === JSON.stringify(zoom)) ?? null;
}

export function timelineCard() {
  const plan = shown(), stages = plan.memory.stages.length;
  const tools = choices(
    "part of the step",
    [["whole", "Whole step"], ["start", "Start"], ["middle", "Middle"], ["end", "End"]],
    part(),
    (name) => change({ zoom: spans(plan.step_s)[name] }),
  );
  const found = timelineChart();
  const height = 140 + stages * (stages <= 8 ? 37 : stages <= 16 ? 19 : 8);
  const table = () => numbers(["part", "seconds"], Object.entries(plan.step_parts_s).map(([name, value]) => [name, value.toPrecision(4)]));
  return card(
    html`<span class="unseen">One step, stage by stage</span>`,
    html`<div class="timeline" data-hovers tabindex="0" role="group" aria-label="Zoom with plus and minus, move with the arrow keys, drag to choose a part, double click for all"
        @pointermove=${point} @pointerleave=${hideTip} @pointerdown=${beginDrag} @dblclick=${() => change({ zoom: null })} @keydown=${zoomByKey}>
        ${picture("timeline", found, height)}
      </div>
      <h3 class="below-chart">Where the time of stage ${plan.parts_stage} goes</h3>
      ${picture("parts", planCharts(), 70, { table })}`,
    { tools, kind: "wide-chart" },
  );
}

// The lanes of the picture are where its hatched grounds are; the last ones are those in full height.
function lanes(root) {
  const grounds = [...root.querySelectorAll('rect[fill="url(#waiting)"][height]:not([width="10"])')].filter((each) => !each.closest("pattern"));
  const count = shown().memory.stages.length;
  return grounds.slice(-Math.max(count, grounds.length / 2));
}

function place(event) {
  const root = event.currentTarget, { step_s } = shown();
  const all = [...lanes(root)].map((lane) => ({ lane, box: lane.getBoundingClientRect() }));
  if (!all.length) return null;
  const { left, width } = all[0].box, [from_s, to_s] = state.zoom ?? [0, step_s];
  const row = all.findIndex(({ box }) => event.clientY >= box.top && event.clientY <= box.bottom);
  const share = (event.clientX - left) / width;
  return { row, at_s: from_s + share * (to_s - from_s), whole_s: share * step_s, isInside: share >= 0 && share <= 1 };
}

const trace = () => remote("trace", String(shown().rank) + shown().summary, () => ask("trace", { plan: shown() }));

let drag = null;

function beginDrag(event) {
  if (event.button) return;
  const at = place(event), root = event.currentTarget;
  if (!at?.isInside) return;
  drag = { from: event.clientX, at_s: at.at_s };
  const end = (last) => {
    removeEventListener("pointerup", end);
    const now = place({ currentTarget: root, clientX: last.clientX, clientY: last.clientY });
    if (now && Math.abs(last.clientX - drag.from) > 8) zoomTo(Math.min(drag.at_s, now.at_s), Math.max(drag.at_s, now.at_s));
    drag = null;
  };
  addEventListener("pointerup", end);
}

function zoomTo(from_s, to_s) {
  const { step_s } = shown(), least = LEAST_PART * step_s;
  const from = Math.max(0, Math.min(from_s, step_s - least)), to = Math.min(step_s, Math.max(to_s, from + least));
  change({ zoom: from <= 0 && to >= step_s ? null : [from, to] });
}

function zoomByKey(event) {
  const { step_s } = shown(), [from, to] = state.zoom ?? [0, step_s], wide = to - from, middle = (from + to) / 2;
  const moves = {
    "+": () => zoomTo(middle - wide / 4, middle + wide / 4),
    "-": () => zoomTo(middle - wide, middle + wide),
    ArrowRight: () => zoomTo(Math.min(from + wide / 4, step_s - wide), Math.min(to + wide / 4, step_s)),
    ArrowLeft: () => zoomTo(Math.max(0, from - wide / 4), Math.max(wide, to - wide / 4)),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function point(event) {
  const at = place(event), found = trace().value;
  if (!at?.isInside || at.row < 0 || !found) return hideTip();
  const stages = found.pipelines.flatMap((pipeline, group) => pipeline.stages.map((stage) => ({ ...stage, group, several: found.pipelines.length > 1 })));
  const stage = stages[at.row];
  if (stage) showTip(words(stage, at.at_s), event.clientX, event.clientY);
}

function words(stage, at_s) {
  const name = `${stage.several ? `group ${stage.group + 1}, ` : ""}stage ${stage.stage}`;
  const row = stage.start_s.findLastIndex((start) => start <= at_s);
  if (row >= 0 && at_s < stage.end_s[row]) {
    const chunk = new Set(stage.chunk).size > 1 ? `, chunk ${stage.chunk[row]}` : "";
    return `${stage.kind[row]} of micro-batch ${stage.micro_batch[row]}${chunk}\n${name}: ${seconds(stage.start_s[row])} to ${seconds(stage.end_s[row])}, ${seconds(stage.end_s[row] - stage.start_s[row])}`;
  }
  const last = stage.end_s.at(-1);
  return at_s < last ? `waiting\n${name}, at ${seconds(at_s)}` : `behind the last backward\n${name}: gradients, optimizer and other, ${seconds(Object.values(stage.after_parts_s).reduce((sum, value) => sum + value, 0))}`;
}
