#!/bin/bash
# All stages on one GPU: run.sh OUT [--toy]. What has a record is skipped; a loop goes on after its last cycle.
out=$1; shift
export OMP_NUM_THREADS=2
stage() { python3 results/findings/tuning/tuning.py "$@" > "$out/$1-$2.log" 2>&1; tail -n 3 "$out/$1-$2.log"; }
mkdir -p "$out"
for model in frozen last-block lora; do stage search $model "$out" "$@" & done
wait
for model in frozen last-block lora; do stage fidelity $model "$out" "$@" & done
stage loop frozen "$out" "$@"
for model in last-block lora; do stage loop $model "$out" "$@" & done
wait
for model in frozen last-block lora; do stage seconds $model "$out" "$@"; done
