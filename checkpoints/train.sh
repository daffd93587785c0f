#!/usr/bin/env bash
# Train the shipped checkpoints anew: DATA=folder with the converted sets OUTPUT=folder checkpoints/train.sh [NAME...]
# DATA holds the sets that real_chat.py names, and dailydialog and sgd for the proof of int8.
# The base is all-MiniLM-L6-v2. A run that was cut off goes on when the command is given again; a finished one stays.
# The shipped ones took six to eight minutes each, with five runs side by side on one NVIDIA H200. On two cores of a Xeon
# with AMX count on two hours for chat-bi, four for chat-poly and five for chat-uni: computed from the time of a step
# (docs/measurements/training.md). CHUNK_TOKENS=500000 is best on a GPU of 16 GiB or more.
set -euo pipefail
: "${DATA:?folder with the sets that checkpoints/real_chat.py names}" "${OUTPUT:?a folder}"
for set in dailydialog sgd; do
  [ -e "$DATA/$set/train.jsonl.zst" ] || { echo "$DATA/$set/train.jsonl.zst is missing" >&2 && exit 2; }
done

texts=$OUTPUT/texts
[ -d "$texts" ] || { python "$(dirname "$0")/real_chat.py" "$DATA" "$texts.new" && mv "$texts.new" "$texts"; }

run() { # name, flags: one run, then how much words count, fitted on what was held out
  [ -e "$OUTPUT/$1/polyrank.json" ] && [ ! -e "$OUTPUT/$1/training-state.pt" ] && return
  polyrank train --base sentence-transformers/all-MiniLM-L6-v2 --output "$OUTPUT/$1" --held-out 300 --seed 11 \
    --lora-rank 64 --schedule cosine --warmup-steps 100 --looks 5 --dropout 0.1 --precision bf16 \
    --chunk-tokens "${CHUNK_TOKENS:-4096}" \
    --max-turns 6 --max-context-tokens 128 --max-candidate-tokens 48 "${@:2}"
}

five() { # chat-bi learnt before the partners' replies were there
  run "$@" --train "$texts"/{convai2_train,ubuntu_irc,multiwoz22_train,synthetic_persona_chat,taskmaster4}.jsonl.zst \
    --weights 6.5 3 2 1 0.3
}

six() {
  run "$@" --train "$texts"/{convai2_train,convai2_partners,ubuntu_irc}.jsonl.zst \
    "$texts"/{multiwoz22_train,synthetic_persona_chat,taskmaster4}.jsonl.zst \
    --weights 6 2 3.5 2 1 0.3
}

late=(--batch-size 256 --extra-replies 256 --learning-rate 8e-4 --code-learning-rate 5e-3) # in-batch negatives

quantise() { # what int8 changes is proven over lists of its training dialogues, and of two sets that it never saw
  grep -q '"quantisation": null' "$OUTPUT/$1/polyrank.json" || return 0
  polyrank quantise --model "$OUTPUT/$1" --data "$texts"/{convai2_train,multiwoz22_train,ubuntu_irc}.jsonl.zst \
    "$DATA"/{dailydialog,sgd}/train.jsonl.zst
}

[ $# -gt 0 ] || set -- chat-bi chat-poly chat-uni
for name in "$@"; do
  case $name in
    chat-bi)
      five chat-bi --architecture bi --steps 886 "${late[@]}"
      quantise chat-bi ;;
    chat-poly)
      six chat-poly --architecture poly --n-codes 64 --steps 1918 "${late[@]}"
      quantise chat-poly ;;
    chat-uni) # it needs the chat-poly of the same OUTPUT; a Uni-encoder does not run in int8
      six plain-uni --architecture uni --batch-size 64 --negatives 15 --learning-rate 5e-4 --steps 2370 --no-evidence
      joined=$OUTPUT/uncalibrated-uni
      [ -e "$joined/polyrank.json" ] || python "$(dirname "$0")/residual.py" "$OUTPUT/plain-uni" "$OUTPUT/chat-poly" "$joined"
      [ -e "$OUTPUT/chat-uni/polyrank.json" ] || polyrank train --only-calibration --seen --held-out 40 --base "$joined" \
        --train "$texts"/{convai2_train,multiwoz22_train,ubuntu_irc}.jsonl.zst --output "$OUTPUT/chat-uni" ;;
    *) echo "no checkpoint is called $name" >&2 && exit 2 ;;
  esac
done
