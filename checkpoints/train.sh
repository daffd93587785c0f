#!/usr/bin/env bash
# Train the shipped checkpoints anew: DATA=folder with the converted sets OUTPUT=new folder checkpoints/train.sh [NAME...]
# On 2 cores about 50 minutes each. The base is all-MiniLM-L6-v2.
set -euo pipefail
: "${DATA:?folder with ubuntu_irc, synthetic_persona_chat, multiwoz21 and taskmaster4}" "${OUTPUT:?a new folder}"

late() { # in-batch negatives; flags: what differs
  polyrank train --train "$DATA/synthetic_persona_chat/train.jsonl.zst" "$DATA/ubuntu_irc/train.jsonl.zst" \
    "$DATA/multiwoz21/valid.jsonl.zst" "$DATA/taskmaster4/train.jsonl.zst" --weights 5 5 1 0.3 \
    --lora-rank 32 --schedule cosine --batch-size 64 --looks 0.6 --dropout 0 --precision bf16 \
    --max-turns 6 --max-context-tokens 128 --max-candidate-tokens 48 "$@"
}

both_rounds() { # name, flags: a second round at a lower rate goes on from the first
  late --output "$OUTPUT/$1-round-1" --base sentence-transformers/all-MiniLM-L6-v2 --seed 0 \
    --steps 800 --warmup-steps 50 --learning-rate 1e-3 --code-learning-rate 5e-3 "${@:2}"
  late --output "$OUTPUT/$1" --base "$OUTPUT/$1-round-1" --seed 1 \
    --steps 520 --warmup-steps 20 --learning-rate 6e-4 --code-learning-rate 3e-3 "${@:2}"
}

[ $# -gt 0 ] || set -- chat-bi chat-poly
for name in "$@"; do
  case $name in
    chat-bi) both_rounds chat-bi --architecture bi ;;
    chat-poly) both_rounds chat-poly --architecture poly --n-codes 64 ;;
    *) echo "no checkpoint is called $name" >&2 && exit 2 ;;
  esac
done
