// Two plans side by side: what is equal is grey, what differs stands out.
import { html, nothing } from "lit-html";
import { planAt, rankName, riskOf, shown } from "./answer.js";
import { card } from "./card.js";
import { dollars, gibibytes, gpuList, hours, percent, seconds } from "./format.js";
import { change, state } from "./store.js";

const PARTS = {
  forward: "forward", backward: "backward", recompute: "recompute", tensor_comm: "tensor traffic",
  context_comm: "context traffic", expert_comm: "expert traffic", pipeline_comm: "links between stages",
  data_comm: "gradients, parameters", optimizer: "optimizer", other: "other", bubble: "waiting",
};
const SMALL = 5e-4; // of the step; less is not shown

const FIELDS = ["vpp", "cp", "ep", "etp", "micro_batch", "microbatch_group", "schedule", "sharding", "shard_group",
  "offload_optimizer_fraction", "offload_layers", "dispatcher", "overlap_tp", "overlap_ep", "precision", "cuda_graph"];

const UNSAID = new Set(["none", "0", "false"]); // of both plans: left out

const listed = (values) => [...new Set(values)].join(" | ");

function rowsOf(priced) {
  const { plan, memory } = priced, segments = plan.pipelines.flatMap((pipeline) => pipeline.segments);
  return {
    GPUs: gpuList(priced.gpus),
    tp: listed(segments.map((each) => each.tp)),
    pp: listed(plan.pipelines.map((each) => each.segments.reduce((sum, one) => sum + one.stages, 0))),
    dp: listed(plan.pipelines.map((each) => each.replicas)),
    ...Object.fromEntries(FIELDS.map((name) => [name.replaceAll("_", " "), String(plan[name] ?? "none")])),
    recompute: listed(segments.map((each) => each.recompute)),
    step: seconds(priced.step_s),
    ...(priced.usd === null ? {} : { time: hours(priced.hours), cost: dollars(priced.usd) }),
    "fullest GPU": gibibytes(memory.reserved_bytes),
    fits: `${percent(memory.fit_probability)} ${riskOf(priced)}`,
    "model FLOPs used": percent(priced.mfu_fraction, 1),
  };
}

export function compareCard() {
  const one = planAt(1), other = state.beside === null ? undefined : planAt(state.beside);
  if (!one || !other || one === other) return nothing;
  const left = rowsOf(one), right = rowsOf(other);
  const parts = Object.keys(PARTS)
    .map((name) => [PARTS[name], other.step_parts_s[name] - one.step_parts_s[name]])
    .filter(([, more]) => Math.abs(more) > SMALL * one.step_s)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const close = html`<button type="button" class="button" @click=${() => change({ beside: null })}>Close</button>`;
  return card(
    `Plan 1 beside ${rankName(other.rank)}`,
    html`<div class="pair compare">
      <div class="scroll"><table>
        <thead><tr><th scope="col"><span class="unseen">setting</span></th><th scope="col" class="number">plan 1</th><th scope="col" class="number">${rankName(other.rank)}</th></tr></thead>
        <tbody>${Object.keys(left).filter((name) => left[name] !== right[name] || !UNSAID.has(left[name])).map((name) => html`<tr class=${left[name] === right[name] ? "same" : "differs"}>
          <th scope="row">${name}${left[name] === right[name] ? nothing : html`<span class="unseen">, differs</span>`}</th><td class="number">${left[name]}</td><td class="number">${right[name]}</td></tr>`)}</tbody>
      </table></div>
      <div>
        <h3>What ${rankName(other.rank)} spends more (right) or less (left)</h3>
        ${diverging(parts)}
        <p class="note">Seconds of the busiest stage, of plan 1 stage ${one.parts_stage}, of ${rankName(other.rank)} stage ${other.parts_stage}.</p>
      </div>
    </div>`,
    { note: "What differs stands out, the rest is grey", tools: close, id: "compare" },
  );
}

// Less to the left, more to the right of a line in the middle.
function diverging(rows) {
  const most = Math.max(...rows.map(([, more]) => Math.abs(more)), 1e-9);
  return html`<ul class="diverging">${rows.map(([name, more]) => {
    const share = (42 * Math.abs(more)) / most;
    return html`<li><span>${name}</span>
      <svg width="100%" height="12" aria-hidden="true">
        <rect x=${`${more < 0 ? 50 - share : 50}%`} width=${`${share}%`} height="12" rx="1.5" fill=${more < 0 ? "var(--bwd)" : "var(--links)"} />
        <rect x="50%" width="1" height="12" fill="var(--ink3)" />
      </svg>
      <b>${more < 0 ? "−" : "+"}${seconds(Math.abs(more))}</b></li>`;
  })}</ul>`;
}
