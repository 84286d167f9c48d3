// The words of `astra plan`, as its --help has them, and how each is said in JSON.

const text = (name, about, example = "") => ({ name, about, example, kind: "text" });
const number = (name, about, example = "") => ({ name, about, example, kind: "number" });
const flag = (name, about) => ({ name, about, kind: "flag" });
const choice = (name, about) => ({ name, about, kind: "choice" });

// By subject, in the order of the command line.
export const MORE = [
  ["The job", [
    choice("precision", "of matrix products"),
    choice("runtime", "whose rules and launcher"),
    choice("stack", "software that runs it"),
  ]],
  ["The space", [
    text("set", "narrow a dimension", "tp=4,8 recompute=none"),
    number("max-gpus", "use no more than this"),
    flag("use-all", "use no fewer GPUs than given"),
    flag("exact", "several types: look ten times as long"),
  ]],
  ["The answer", [
    choice("risk", "how sure the first plan is to fit"),
    number("memory-margin", "part of the memory to keep free", "0.05"),
    number("min-tokens-per-s", "with the fewest GPUs"),
    number("top", "plans to show", "10"),
    flag("all", "near-identical plans too"),
    number("time-limit", "seconds; then the best so far"),
  ]],
  ["Money", [
    text("tokens", "to train on", "1T"),
    text("budget", "US dollars in all", "400k"),
    text("deadline", "hours, days or a date", "30d"),
    text("longest", "leave out plans that take longer", "1y"),
    choice("order", "which plan comes first"),
    text("cloud", "rent only there", "gcp,aws"),
    text("region", "rent only there", "us-east-1"),
    text("owned", "what GPUs of your own were bought for", "h100=30000"),
    flag("spot", "spot nodes too"),
    flag("no-mixed", "no clusters of several types"),
    flag("any-region", "several types across clouds, too"),
    flag("join-guessed", "nodes whose network nobody publishes, too"),
  ]],
  ["What a run loses", [
    flag("no-failures", "nothing: every second trains"),
    text("mtbf", "hours of one GPU between failures", "50700"),
    text("restart", "after a failure", "10m"),
    text("startup", "before the first step", "30m"),
    text("storage-bandwidth", "of all nodes, for checkpoints", "20 GB/s"),
  ]],
];

const KINDS = new Map(MORE.flatMap(([, words]) => words.map((word) => [word.name, word.kind])));

// Of a link that nobody here wrote: a word of the command line is sent as it stands.
const plain = (name, value) => {
  const kind = KINDS.get(name) ?? "text";
  if (kind === "flag") return value !== "false";
  return kind === "number" && value.trim() !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
};

// `--no-mixed` is `mixed: false` in JSON, `--set` a list; all else is the word with `_` for `-`.
export function asJson(name, value) {
  if (name === "no-mixed" || name === "no-failures") return [name.slice(3), value === "false"];
  if (name === "set") return ["set", value.split(/\s+/).filter(Boolean)];
  return [name.replaceAll("-", "_"), plain(name, value)];
}

// 1,024 is a number here; on the command line it would be two batches.
export const withoutCommas = (value) => value.replace(/(?<=\d),(?=\d{3}(?!\d))/g, "").trim();
