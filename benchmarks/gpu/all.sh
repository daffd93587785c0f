#!/usr/bin/env bash
# Everything that waits for a GPU, in eight minutes at most.
#
#     bash benchmarks/gpu/all.sh OUT [--base FOLDER] [--device cpu]
#
# Run it from the root of the repository. OUT gets lines of JSON for each part (PART.jsonl), what the part said besides
# (PART.log), and summary.json. Each part has its own limit; one that fails or runs out of time does not stop the
# others. The exit status is 1 if any failed, and 2 where nothing can run. FOLDER holds the base model that prepare.py
# wrote, for real weights in the trials of precisions; without it they are random. `--device cpu` runs all parts small.
set -u

usage() {
    echo "all.sh: $1" >&2
    echo "usage: bash benchmarks/gpu/all.sh OUT [--base FOLDER] [--device cpu]" >&2
    exit 2
}

out='' base='' device=cuda
while (($#)); do
    case $1 in
        --base | --device)
            (($# > 1)) || usage "$1 needs a value"
            [[ $1 == --base ]] && base=$2 || device=$2
            shift
            ;;
        -*) usage "$1 is unknown" ;;
        *)
            [[ -z $out ]] || usage "one OUT is enough; $1 came after $out"
            out=$1
            ;;
    esac
    shift
done
[[ -n $out ]] || usage "give OUT, a folder for the results"
[[ $device == cuda || $device == cpu ]] || usage "--device is cuda or cpu, not $device"
[[ -z $base || -d $base ]] || usage "--base: $base is no folder; prepare.py makes one"
[[ -f benchmarks/gpu/all.sh ]] || usage "run it from the root of the repository"
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
if [[ $device == cuda ]] && ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    usage "torch finds no GPU here; give --device cpu to see that the parts run"
fi
mkdir -p "$out" || usage "$out cannot be made"

small=() weights=(--random)
[[ $device == cpu ]] && small=(--tiny --seconds 0) weights=(--tiny)
[[ -n $base ]] && weights=(--base "$base")

parts='' failed=0
# part NAME LIMIT MODULE [OPTION ...]
part() {
    local name=$1 limit=$2 began=$SECONDS status said=done
    shift 2
    timeout --kill-after=5 "$limit" python -m "$@" --device "$device" >"$out/$name.jsonl" 2>"$out/$name.log"
    status=$?
    if ((status == 124 || status == 137)); then
        said="ran out of its $limit s"
    elif ((status)); then
        said="failed with status $status"
    fi
    ((status)) && failed=1
    echo "$name: $said, $((SECONDS - began)) s"
    parts+="${parts:+, }\"$name\": {\"status\": $status, \"said\": \"$said\", \"seconds\": $((SECONDS - began))}"
    echo "{\"device\": \"$device\", \"failed\": $failed, \"parts\": {$parts}}" >"$out/summary.json"
}

part check 60 benchmarks.gpu.speed --only check "${small[@]}"
part scan 120 benchmarks.gpu.speed --only scan --seconds 1 "${small[@]}"
part precision 75 benchmarks.gpu.precision "${weights[@]}"
part serve 165 benchmarks.gpu.speed --only batch serve --seconds 1 "${small[@]}"
part training 60 benchmarks.gpu.speed --only training "${small[@]}"
exit "$failed"
