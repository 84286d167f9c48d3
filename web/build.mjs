// Builds the page into the package: `make web`. The same sources give the same files.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";

const out = process.argv[2] ?? "../src/astra/web/static";
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const { metafile } = await build({
  entryPoints: ["main.js", "theme.js", "style.css"],
  outdir: out,
  entryNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  loader: { ".woff2": "file" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none", // LICENSES.txt has them
  metafile: true,
});
let page = readFileSync("index.html", "utf8");
for (const path of Object.keys(metafile.outputs)) {
  const name = basename(path);
  page = page.replaceAll(`static/${name.replace(/-[0-9A-Z]{8}(\.\w+)$/, "$1")}"`, `static/${name}"`);
}
writeFileSync(join(out, "index.html"), page);
const licence = (path) => readFileSync(path, "utf8").trim();
writeFileSync(
  join(out, "LICENSES.txt"),
  [
    "The page contains lit-html 3.3.3 (github.com/lit/lit):",
    licence("node_modules/lit-html/LICENSE"),
    "It is set in Inter 4 (github.com/rsms/inter), cut to Latin and to weights 400 to 650 from the package",
    "@fontsource-variable/inter 5.3.0:",
    licence("inter-LICENSE.txt"),
  ].join("\n\n") + "\n",
);

// What it was built from, so that a test sees a build that was forgotten.
const sources = readdirSync(".").filter((name) => /\.(js|mjs|css|html|woff2)$|^package.*\.json$/.test(name)).sort();
const sum = (name) => createHash("sha256").update(readFileSync(name)).digest("hex");
writeFileSync(join(out, "SOURCES.txt"), sources.map((name) => `${sum(name)}  ${name}\n`).join(""));
