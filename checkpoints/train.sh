#!/usr/bin/env bash
# Train the shipped checkpoints anew: DATA=folder with the converted sets OUTPUT=folder checkpoints/train.sh [NAME...]
# The base is all-MiniLM-L6-v2. A run that was cut off goes on when the command is given again; a finished one stays.
# The shipped ones took eight minutes each, with five runs side by side on one NVIDIA H200. On two cores of a Xeon with AMX
# count on two hours each, and four for chat-cross: computed from the time of a step (docs/measurements/training.md).
set -euo pipefail
: "${DATA:?folder with the sets that checkpoints/real_chat.py names}" "${OUTPUT:?a folder}"

texts=$OUTPUT/texts
[ -d "$texts" ] || { python "$(dirname "$0")/real_chat.py" "$DATA" "$texts.new" && mv "$texts.new" "$texts"; }

run() { # name, flags: one run, then how much words count, fitted on what was held out
  [ -e "$OUTPUT/$1/polyrank.json" ] && [ ! -e "$OUTPUT/$1/training-state.pt" ] && return
  polyrank train --base sentence-transformers/all-MiniLM-L6-v2 --output "$OUTPUT/$1" \
    --train "$texts"/{convai2_train,ubuntu_irc,multiwoz22_train,synthetic_persona_chat,taskmaster4}.jsonl.zst \
    --weights 6.5 3 2 1 0.3 --held-out 300 --seed 11 \
    --lora-rank 64 --schedule cosine --warmup-steps 100 --looks 5 --dropout 0.1 --precision bf16 --chunk-tokens 32768 \
    --max-turns 6 --max-context-tokens 128 --max-candidate-tokens 48 "${@:2}"
}

late() { # in-batch negatives, and replies of 256 other examples
  run "$@" --batch-size 256 --extra-replies 256 --learning-rate 8e-4 --code-learning-rate 5e-3
}

[ $# -gt 0 ] || set -- chat-bi chat-poly chat-cross
for name in "$@"; do
  case $name in
    chat-bi) late chat-bi --architecture bi --steps 886 ;;
    chat-poly) late chat-poly --architecture poly --n-codes 64 --steps 883 ;;
    chat-cross) # it needs the chat-poly of the same OUTPUT
      run plain-cross --architecture cross --batch-size 32 --negatives 15 --learning-rate 4e-4 --steps 1356 --no-evidence
      joined=$OUTPUT/uncalibrated-cross
      [ -e "$joined" ] || python "$(dirname "$0")/residual.py" "$OUTPUT/plain-cross" "$OUTPUT/chat-poly" "$joined"
      [ -e "$OUTPUT/chat-cross" ] || polyrank train --only-calibration --seen --held-out 40 --base "$joined" \
        --train "$texts"/{convai2_train,multiwoz22_train,ubuntu_irc}.jsonl.zst --output "$OUTPUT/chat-cross" ;;
    *) echo "no checkpoint is called $name" >&2 && exit 2 ;;
  esac
done
