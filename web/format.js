// Numbers as people read them. A number never parts from its unit: U+00A0 between them.
import { html } from "lit-html";

const together = (text) => text.replaceAll(" ", "\u00a0");
const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });

export function seconds(value) {
  if (value === 0) return together("0 s");
  const size = Math.abs(value);
  if (size >= 100) return together(`${grouped(value)} s`);
  if (size >= 1) return together(`${value.toPrecision(3)} s`);
  if (size >= 0.0995) return together(`${value.toFixed(2)} s`);
  return together(`${Number((value * 1e3).toPrecision(2))} ms`);
}

export const percent = (fraction, digits = 0) => together(`${(100 * fraction).toFixed(digits)} %`);

export const signedPercent = (fraction) => (fraction < 0 ? "−" : "+") + percent(Math.abs(fraction), 1);

export function count(value) {
  if (value >= 1e6) return together(`${(value / 1e6).toPrecision(3)} M`);
  return value >= 1e4 ? together(`${Math.round(value / 1e3)} k`) : grouped(value);
}

export const gibibytes = (bytes) => together(`${(bytes / 2 ** 30).toFixed(1)} GiB`);

export function bytes(value) {
  const [size, unit] = value >= 1e12 ? [1e12, "TB"] : value >= 1e9 ? [1e9, "GB"] : [1e6, "MB"];
  return together(`${Number((value / size).toPrecision(3))} ${unit}`);
}

export function dollars(value) {
  if (value === null) return "not known";
  const size = Math.abs(value), sign = value < 0 ? "−$" : "$";
  if (size >= 1e6) return together(`${sign}${(size / 1e6).toFixed(2)} M`);
  if (size >= 1e4) return together(`${sign}${Number((size / 1e3).toPrecision(3))} k`);
  return size >= 100 ? sign + grouped(size) : sign + size.toFixed(2);
}

export function hours(value) {
  if (value === null) return "not known";
  if (value < 1) return together(`${Math.round(value * 60)} min`);
  if (value < 72) return together(`${Number(value.toPrecision(3))} h`);
  return together(`${(value / 24).toFixed(value < 240 ? 1 : 0)} days`);
}

// "H100-80GB-SXM" as people say it.
export const shortGpu = (name) => name.replace(/-\d+GB|-SXM\d*/g, "").replaceAll("-", " ");

export const gpuList = (gpus) =>
  Object.entries(gpus).map(([name, number]) => together(`${grouped(number)} × ${shortGpu(name)}`)).join(" and ");

// Names with hyphens, H100-80GB-SXM, and settings, tp 4, that no line parts.
export const unbroken = (text) =>
  text.split(/(\S+-\S+|\b[a-z]{2,3} \d+\b\S*)/).map((part, row) => (row % 2 ? html`<span class="glued">${part}</span>` : part));

export { grouped };
