# Sourced by .ci/run and scripts/everything.sh: checks one after the other, and a summary of them at the end.
summary=()
failures=0

stage_logs=  # folder that keeps what each check said, as NAME.log

# stage NAME COMMAND...: runs a check and keeps the lines that sum it up. Status 77: it can't be done here, and the last line says why.
# Returns 1 where the check failed.
stage() {
  local name=$1 start=$SECONDS status=0 log line
  shift
  log=${stage_logs:+$stage_logs/$name.log}
  [[ -n $log ]] || log=$(mktemp)
  printf '\n##### %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$log" || status=$?
  case $status in
    0) summary+=("passed  $name ($((SECONDS - start)) s)") ;;
    77) skipped "$name" "$(tail -n 1 "$log")" ;;
    *)
      summary+=("FAILED  $name ($((SECONDS - start)) s)")
      failures=$((failures + 1))
      ;;
  esac
  while IFS= read -r line; do summary+=("        $line"); done < <(grep -E '^[0-9]+% tests passed' "$log" || true)
  [[ -n $stage_logs ]] || rm -f "$log"
  ((status == 0 || status == 77))
}
skipped() { summary+=("skipped $1: $2"); }
# Prints the summary and ends: with status 1 where a check failed.
finish() {
  printf '\n##### Summary, %d s\n' "$SECONDS"
  printf '%s\n' "${summary[@]}"
  exit $((failures > 0))
}
