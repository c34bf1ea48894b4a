#!/bin/sh
# torch_compare.py by the path's Python; 77 (skipped) when there is none.
command -v python >/dev/null || { echo "skipped: no python on the path"; exit 77; }
exec python "$(dirname "$0")/torch_compare.py" "$@"
