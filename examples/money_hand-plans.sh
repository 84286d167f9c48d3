# What a search is worth in dollars: plans as an expert writes them (tensor parallel inside a node,
# as few stages as fit, full batches) against the fastest plan that costs no more. A800 and H800,
# prices on the command line, 100 billion tokens.
tokens=100B price=a800=1.60,h800=2.50
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

compare() { # model, GPU, GPUs, batch, sequence, and the hand plan
  model=$1 gpu=$2 count=$3 batch=$4 seq=$5
  shift 5
  own=$(echo "$price" | tr , '\n' | grep "^$gpu=")
  astra predict "$model" --gpus "$gpu:$count" --global-batch "$batch" --seq-len "$seq" "$@" \
    --tokens "$tokens" --price "$own" --json > "$folder/hand.json"
  budget=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["usd"])' "$folder/hand.json")
  astra plan "$model" --gpus "$gpu:$count" --global-batch "$batch" --seq-len "$seq" \
    --objective money --budget "$budget" --tokens "$tokens" --price "$own" --json > "$folder/found.json"
  python - "$folder/hand.json" "$folder/found.json" <<'PYTHON'
import json, sys
hand = json.load(open(sys.argv[1]))
found = json.load(open(sys.argv[2]))["plans"][0]
for who, plan in (("hand", hand), ("astra", found)):
    (gpu, count), = plan["gpus"].items()
    cells = (hand["plan"]["model"]["name"] if who == "hand" else "", who, f"{count} {gpu}")
    figures = f"{plan['hours']:7.1f} {plan['usd_per_hour']:7.2f} {plan['usd']:9,.0f}"
    print("{:<12} {:<6} {:<14}".format(*cells), figures, "", plan["summary"])
saved = hand["hours"] / found["hours"] - 1, 1 - found["usd"] / hand["usd"]
print(" " * 19, "{:.1%} faster, {:.1%} fewer dollars".format(*saved))
PYTHON
}

printf '%-12s %-6s %-14s %7s %7s %9s  %s\n' model who GPUs hours '$/h' USD plan
for gpu in a800 h800; do
  compare llama-2-7b $gpu 32 256 4096 --tp 2 --pp 1 --micro-batch 1
  compare llama-2-13b $gpu 64 512 4096 --tp 4 --pp 1 --micro-batch 1
  compare llama-3-70b $gpu 128 512 8192 --tp 8 --pp 4 --micro-batch 1
done
# One frontier over both types: what a budget of 6,500 dollars buys for the smallest of them.
astra plan llama-2-7b --gpus a800:64,h800:64 --price $price --tokens $tokens --budget 6500 \
  --global-batch 256 --seq-len 4096 --objective money --top 3 | sed -n '1,/^\* the answer/p'
