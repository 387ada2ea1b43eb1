#!/bin/bash
# The final table of docs/field.md: run.sh OUT SECONDS PROCESSES CELL ... A job is half of the seeds of a cell; one that has its records
# is not run again, and what is cut off has none. table.py reads them. On one GPU: 13 cells; small tables need none.
out=$1 processes=$3
deadline=$(($(date +%s) + $2))
shift 3
export OMP_NUM_THREADS=1 deadline out
all="random margin badge typiclust uherding dropquery dcom alfamix falcun clustermargin bait gain cover cover~"
one() {
  cell=$1 seeds=$2 arms=$3 target=$out/${2%%,*}
  mkdir -p "$target"
  jobs=()
  for loss in ce l2; do [ -e "$target/$cell-$loss.json" ] || jobs+=("$cell:$loss"); done
  left=$((deadline - $(date +%s)))
  if [ ${#jobs[@]} -gt 0 ] && [ $left -gt 30 ]; then
    ARMS=$arms timeout $left ${PYTHON:-python3} results/findings/pool/verdict.py "$target" "$seeds" "${jobs[@]}" 2>&1
  fi
}
export -f one
for cell in "$@"; do
  case $cell in  # ParBaLS takes hours with many classes
    digits-few | pima-few | cancer-few | penguins-few | wine-few) arms="$all parbals" ;;
    *) arms=$all ;;
  esac
  for seeds in 130,131,132,133,134 135,136,137,138,139; do printf '%s\0%s\0%s\0' "$cell" "$seeds" "$arms"; done
done | xargs -0 -n 3 -P "$processes" bash -c 'one "$@"' _
