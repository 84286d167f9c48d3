// A question: its words as the sentence has them, as JSON for the server, and as a link.
import { asJson, withoutCommas } from "./words.js";

// What stands in the sentence or in the address besides the words of `astra plan`.
const OWN = new Set(["model", "gpus", "price", "file", "pools", "plan"]);

export const emptyQuestion = () => ({ model: "", file: null, gpus: [emptyGpu()], words: {} });
export const emptyGpu = () => ({ name: "", count: "", price: "", node: {} });

export const EXAMPLES = [
  ["One GPU type", "model=llama-3-70b&gpus=h100:512&global-batch=1024&seq-len=4096"],
  ["Mixed pool", "model=llama-3-70b&gpus=h100:256,a100-80g:512&global-batch=2048&seq-len=4096"],
  ["Money", "model=llama-3-70b&gpus=h100:1024,b200:1024&global-batch=1024&seq-len=4096&objective=money&tokens=1T&deadline=30d"],
];

export const isMoney = (question) =>
  ["money", "frontier"].includes(question.words.objective) ||
  Boolean(question.words.budget || question.words.deadline);

// Whether there is enough of it to ask.
export const isWhole = (question) =>
  Boolean(
    (question.model || question.file) &&
      question.gpus.every((gpu) => gpu.name && gpu.count) &&
      question.words["global-batch"] &&
      question.words["seq-len"] &&
      (!["money", "frontier"].includes(question.words.objective) || question.words.tokens),
  );

const gpuWords = (question) =>
  question.gpus.map((gpu) => `${gpu.name.trim()}:${withoutCommas(gpu.count)}`).join(",");

const priceWords = (question) =>
  question.gpus.filter((gpu) => gpu.price).map((gpu) => `${gpu.name.trim()}=${gpu.price.trim()}`).join(",");

const hasNodes = (gpu) => Object.values(gpu.node).some(Boolean);

// The tables of a cluster file, where nodes are not the catalogue's.
const clusterOf = (question) => ({
  pools: question.gpus.map((gpu) => ({
    gpu: gpu.name.trim(),
    count: Number(withoutCommas(gpu.count)),
    ...Object.fromEntries(
      Object.entries(gpu.node)
        .filter(([, value]) => value)
        .map(([name, value]) => [name, name === "gpus_per_node" ? Number(value) : value]),
    ),
  })),
});

const NUMBERS = new Set(["global-batch", "seq-len", "max-gpus"]);

export function bodyOf(question) {
  const body = { model: question.file?.config ?? question.model.trim() };
  if (question.gpus.some(hasNodes)) body.cluster = clusterOf(question);
  else body.gpus = gpuWords(question);
  const price = priceWords(question);
  if (price) body.price = price;
  for (const [name, said] of Object.entries(question.words)) {
    if (!said) continue;
    const [key, value] = asJson(name, NUMBERS.has(name) ? withoutCommas(said) : said);
    body[key] = value;
  }
  return body;
}

// Words that are about a search; `astra predict` takes all others.
const OF_SEARCHES = ["set", "max_gpus", "use_all", "objective", "risk", "top", "all", "exact", "time_limit",
  "min_tokens_per_s", "order", "longest"];

// What a plan of this question's answer is predicted with, beside its settings.
export const jobOf = (body) =>
  Object.fromEntries(Object.entries(body).filter(([name]) => !OF_SEARCHES.includes(name)));

const readable = (value) =>
  encodeURIComponent(value).replace(/%(3A|2C|2F|24|40|3D)/g, (code) => decodeURIComponent(code));

export async function linkOf(question, plan) {
  const parts = question.file
    ? [["file", await packed({ name: question.file.name, config: question.file.config })]]
    : [["model", question.model.trim()]];
  parts.push(["gpus", gpuWords(question)]);
  if (priceWords(question)) parts.push(["price", priceWords(question)]);
  if (question.gpus.some(hasNodes)) parts.push(["pools", await packed(question.gpus.map((gpu) => gpu.node))]);
  for (const [name, value] of Object.entries(question.words)) if (value) parts.push([name, NUMBERS.has(name) ? withoutCommas(value) : value.trim()]);
  if (plan > 1) parts.push(["plan", String(plan)]);
  return parts.map(([name, value]) => `${name}=${readable(value)}`).join("&");
}

// The question of a link, and the rank of its plan; null where the link has none.
export async function readLink(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  if (![...said.keys()].length) return null;
  const question = emptyQuestion();
  question.model = said.get("model") ?? "";
  if (said.has("file")) question.file = await unpacked(said.get("file"));
  const prices = new Map((said.get("price") ?? "").split(",").map((each) => each.split("=")));
  const nodes = said.has("pools") ? await unpacked(said.get("pools")) : [];
  const pools = (said.get("gpus") ?? "").split(",").filter(Boolean);
  if (pools.length) {
    question.gpus = pools.map((pool, row) => {
      const [name, count = ""] = pool.split(":");
      return { name, count, price: prices.get(name) ?? "", node: nodes[row] ?? {} };
    });
  }
  for (const [name, value] of said) if (!OWN.has(name)) question.words[name] = value;
  return { question, plan: Number(said.get("plan") ?? 1) || 1 };
}

async function packed(value) {
  const stream = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(said) {
  const bytes = Uint8Array.from(atob(said.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}
