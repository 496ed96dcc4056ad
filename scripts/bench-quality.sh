#!/usr/bin/env bash
# What the KV formats cost in quality: perplexity and KL divergence against f16 on the first tokens of a public-domain
# novel (Jane Austen, "Emma"), which a Debian package carries. bench-quality.sh --tokens 40000: more of it.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice

package=r-cran-janeaustenr
text_sha256=7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe
text="$cache/emma.txt"
if [[ ! -e $text ]]; then
  command -v apt-get >/dev/null || die "The text is fetched as a Debian package: put it at $text yourself."
  rm -rf "$cache/incoming"
  mkdir -p "$cache/incoming"
  (cd "$cache/incoming" && logged "$package" "$cache/logs/$package.log" apt-get download "$package") ||
    die "Cannot download the package $package: is there a network? (log: $cache/logs/$package.log)"
  dpkg-deb -x "$cache/incoming/$package"_*.deb "$cache/incoming/unpacked"
  python3 "$repo/bench/austen.py" \
    "$cache/incoming/unpacked/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" >"$cache/incoming/emma.txt"
  mv "$cache/incoming/emma.txt" "$text"
  rm -rf "$cache/incoming"
fi
[[ $(sha256sum "$text" | cut -d' ' -f1) == "$text_sha256" ]] ||
  die "Wrong checksum: $text is damaged or another edition; delete it and try again."

# dense on f16 shows how far apart two correct ways to compute the same are.
printf 'f16, dense: '
"$repo/build/coppice" bench --model "$pinned_model" --case quality --text "$text" --attention dense "$@"
for format in int8 turbo4; do
  printf '%s: ' "$format"
  "$repo/build/coppice" bench --model "$pinned_model" --case quality --text "$text" --kv-format "$format" "$@"
done
