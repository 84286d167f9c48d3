#!/usr/bin/env bash
# Cuts Inter to what the page needs: Latin, weights 400 to 650. Run by hand where that changes; needs
# `pip install fonttools brotli`. The font is OFL-1.1 (LICENSES.txt).
set -euo pipefail
cd "$(mktemp -d)"
npm pack --silent @fontsource-variable/inter@5.3.0 > name
tar xzf "$(cat name)"
fonttools varLib.instancer --quiet package/files/inter-latin-wght-normal.woff2 wght=400:650 -o cut.ttf
pyftsubset cut.ttf --flavor=woff2 --layout-features=kern,tnum,calt --no-hinting \
  --unicodes=U+20-7E,U+A0-FF,U+2009,U+2013,U+2014,U+2018-201D,U+2022,U+2026,U+2192,U+2212 \
  --output-file="$OLDPWD/inter.woff2"
