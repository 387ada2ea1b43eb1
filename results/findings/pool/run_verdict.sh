#!/bin/bash
# Ten processes of the final table on one GPU: run_verdict.sh OUT SECONDS LOSS ...; what is cut off has no record.
out=$1 limit=$2; shift 2
export OMP_NUM_THREADS=1
each() {
  local jobs=()
  for loss in $losses; do for cell in "$@"; do [ -e "$out/$cell-$loss.json" ] || jobs+=("$cell:$loss"); done; done
  timeout "$limit" python3 results/findings/pool/verdict.py "$out" 110,111,112,113,114,115,116,117,118,119 "${jobs[@]}" > "$out/$1.log" 2>&1 &
}
losses="$*"
each bank-few
each c100-few c10-many
each banktfidf-few mnist-many
each c10-few mnist-few
each c100-many pima-few
each c10-tail-few cancer-few
each text-few wine-few
each c10-noisy-few digits-many c10-tail-many
each digits-few penguins-few c10-noisy-many
each text-many bank-many
wait
