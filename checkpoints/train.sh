#!/usr/bin/env bash
# Train the shipped checkpoints anew: DATA=folder with the converted sets OUTPUT=new folder checkpoints/train.sh [NAME...]
# On 2 cores about 50 minutes each, chat-cross 80; it needs the chat-poly of the same OUTPUT.
# The base is all-MiniLM-L6-v2.
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

cross() { # adapters on chat-poly's context side; flags: what differs
  polyrank train --architecture cross --train "$DATA/synthetic_persona_chat/train.jsonl.zst" "$DATA/ubuntu_irc/train.jsonl.zst" \
    "$DATA/multiwoz21/valid.jsonl.zst" "$DATA/taskmaster4/train.jsonl.zst" --weights 6 4 1 0.3 --held-out 100 \
    --lora-rank 32 --schedule cosine --batch-size 24 --dropout 0 --precision bf16 "$@"
}

both_cross_rounds() { # a plain Cross-encoder first, then what it adds to chat-poly's score
  cross --output "$OUTPUT/chat-cross-round-1" --base "$OUTPUT/chat-poly" --seed 2 --steps 1300 --warmup-steps 60 --looks 16 \
    --learning-rate 4e-4 --code-learning-rate 1e-3 --negatives 3 \
    --max-turns 3 --max-context-tokens 88 --max-candidate-tokens 32
  cross --output "$OUTPUT/chat-cross" --base "$OUTPUT/chat-cross-round-1" --first-stage "$OUTPUT/chat-poly" \
    --seed 5 --steps 70 --warmup-steps 5 --looks 10 --learning-rate 5e-5 --code-learning-rate 2e-4 --negatives 5 \
    --chunk-tokens 8192
}

[ $# -gt 0 ] || set -- chat-bi chat-poly chat-cross
for name in "$@"; do
  case $name in
    chat-bi) both_rounds chat-bi --architecture bi ;;
    chat-poly) both_rounds chat-poly --architecture poly --n-codes 64 ;;
    chat-cross) both_cross_rounds ;;
    *) echo "no checkpoint is called $name" >&2 && exit 2 ;;
  esac
done
