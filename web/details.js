// What a plan is made of: its memory, its traffic, and which GPUs hold which layers.
import { html, nothing } from "lit-html";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { card } from "./card.js";
import { answerCharts, chartsOf, numbers, picture, planCharts, widthOf } from "./charts.js";
import { bytes, gibibytes, grouped, seconds, shortGpu } from "./format.js";
import { remote, state } from "./store.js";

// What the server takes as `plan`: the whole answer where this plan is one of it, for its question stands there.
export function sourceOf(plan) {
  const { answer } = state;
  return answer.plans.some(({ rank }) => rank === plan.rank) ? { plan: answer, rank: plan.rank } : { plan };
}

// What is quickly said of the plan; then, in its place, what another search had to find out.
export function explained() {
  const plan = shown(), key = `${plan.rank} ${plan.summary}`;
  const explain = (place, quick) => remote(place, key, (signal) => ask("explain", { ...sourceOf(plan), quick }, signal));
  const first = explain("explain-quick", true);
  if (first.isOld) return first;
  const whole = explain("explain", false);
  return whole.isOld || whole.error ? first : whole;
}

export function memoryCard() {
  const { memory } = shown();
  const causes = Object.keys(memory.stages[0]).filter((name) => name.endsWith("_bytes"));
  const table = () => numbers(
    ["stage", ...causes.map((name) => name.replace("_bytes", "").replaceAll("_", " "))],
    memory.stages.map((stage) => [stage.stage, ...causes.map((name) => gibibytes(stage[name]))]),
  );
  return card("Memory of one GPU", picture("memory", planCharts(), 90 + 32 * memory.stages.length, { table }), {
    note: `The fullest is stage ${memory.worst_stage}: ${gibibytes(memory.reserved_bytes)} of ${gibibytes(memory.usable_bytes)}`,
  });
}

export function trafficCard() {
  const { value, isOld } = explained();
  const rows = value?.exchanges ?? [];
  if (value && !rows.length) return nothing;
  return card("What one GPU sends in a step", html`<div class=${isOld ? "scroll is-old" : "scroll"} role="group" aria-label="Traffic" aria-disabled=${isOld ? "true" : nothing}><table>
    <thead><tr><th scope="col">Group</th><th scope="col">What</th><th scope="col" class="number">Times</th><th scope="col" class="number">Sent</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr>
      <td class="glued">${each.group} <b>${each.ranks}</b></td>
      <td>${each.operation}, ${each.what}${each.crosses_nodes ? ", across nodes" : ""}</td>
      <td class="number">${grouped(each.count)}</td><td class="number">${bytes(each.sent_bytes)}</td>
    </tr>`)}</tbody>
  </table></div>`);
}

export function poolCard() {
  const several = new Set(shown().memory.stages.map((stage) => stage.gpu)).size > 1;
  if (!several) return nothing;
  return card("Which GPUs hold which layers", picture("pool", planCharts(), 200), {
    note: "A bar is a layer, a dot a GPU, a column of dots a node",
  });
}

export function mixingCard() {
  const { mixed } = state.answer;
  if (!mixed) return nothing;
  const idle = Object.entries(mixed.idle).filter(([, number]) => number);
  const note = idle.length ? `Left idle: ${idle.map(([gpu, number]) => `${grouped(number)} × ${shortGpu(gpu)}`).join(", ")}` : "No GPU is left idle";
  const table = () => numbers(["way", "step"], [
    ["together, this plan", seconds(shown().step_s)],
    ...Object.entries(mixed.alone_step_s).map(([gpu, value]) => [`${gpu} alone`, value ? seconds(value) : "nothing fits"]),
  ]);
  return card("What mixing brings", picture("mixing", answerCharts({ mixing: widthOf("right") }), 160, { table }), { note });
}

export function changesCard() {
  const found = explained();
  if (!found.value) return card("What would change the step", html`<div .style=${"min-height: 160px"}></div>`);
  const changes = chartsOf("changes", `${found.value.rank} ${found.value.summary} ${found.value.changes.length}`, found.value, { changes: widthOf("left") });
  const table = () => numbers(["if", "step", "plan"], found.value.changes.map((each) => [each.what, each.plan ? seconds(each.plan.step_s) : "nothing fits", each.plan?.summary ?? ""]));
  return card("What would change the step", picture("changes", { ...changes, isOld: changes.isOld || found.isOld }, 160, { table }), {
    note: "Blue: faster, amber: slower. Other settings and GPU counts are searched again.",
  });
}
