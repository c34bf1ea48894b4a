# Sourced by the other tools: where things are, and how they come to be there. Debian 12 with root, apt and pip.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
choose_preset() {  # choose_preset PRESET
  PRESET=$1
  BUILD=$ROOT/build/$PRESET
}
choose_preset "${KILN_PRESET:-dev}"

# What the product is built with, and what its tests and tools take besides.
PRODUCT_PACKAGES=(g++ cmake ninja-build lld-19 llvm-19-dev flatbuffers-compiler libflatbuffers-dev librocksdb-dev libboost-dev
  libyaml-cpp-dev libxxhash-dev libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libseccomp-dev libssl-dev libhiredis-dev
  libcurl4-openssl-dev libgtest-dev libgmock-dev spirv-headers spirv-tools libze-dev python3-dev python3-venv)
PACKAGES=("${PRODUCT_PACKAGES[@]}" ccache clang-19 libomp-19-dev clang-format-19 clang-tidy-19 libbenchmark-dev pkgconf
  opencl-c-headers util-linux)
OPTIONAL_PACKAGES=(libze1 intel-opencl-icd redis-server nginx-light zsh qemu-user)  # tests that need one of these skip without it

say() { printf '== %s\n' "$*" >&2; }

install_missing() {  # install_missing [--no-install-recommends] PACKAGE…
  local options=() missing=() package
  if [ "$1" = --no-install-recommends ]; then options=("$1"); shift; fi
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${options[@]}" "${missing[@]}" >/dev/null
}

install_packages() {
  install_missing "${PACKAGES[@]}"
  install_missing "${OPTIONAL_PACKAGES[@]}" || say "no ${OPTIONAL_PACKAGES[*]}: tests that need them will skip"
}

has_modules() {  # has_modules PYTHON MODULE…
  "$1" -c 'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))' "${@:2}"
}

# Sets PYTHON: the caller's (a path or a name), else a python3 that has torch, else a virtual environment with torch.
ensure_python() {
  local modules=(torch transformers numpy pytest)
  if [ -z "${PYTHON:-}" ] && has_modules python3 "${modules[@]}"; then PYTHON=python3; fi
  if [ -z "${PYTHON:-}" ]; then
    PYTHON=$ROOT/.venv/bin/python
    [ -x "$PYTHON" ] || python3 -m venv "$ROOT/.venv"
    if ! has_modules "$PYTHON" "${modules[@]}"; then
      say 'installing torch 2.13.0 into .venv'
      "$PYTHON" -m pip install -q torch==2.13.0 transformers numpy pytest || say 'no torch could be installed'
    fi
  fi
  PYTHON=$(command -v "$PYTHON")
  export PYTHON
}

# Compilers of device code that come as Python packages, beside the build: no Python of the user's is touched. Tests that
# need one skip where it cannot be had.
VENDOR=$ROOT/build/vendor
vendor_package() {  # vendor_package NAME==VERSION FILE: FILE is in the package, relative to $VENDOR
  [ -e "$VENDOR/$2" ] && return
  say "installing $1 into build/vendor"
  "$PYTHON" -m pip install -q --no-deps --upgrade --target "$VENDOR" "$1" || say "no $1: tests that need it will skip"
}

# In a folder of its own: pip replaces the folder that all of NVIDIA's packages share.
vendor_cudnn() {
  [ -e "$VENDOR/cudnn/nvidia/cudnn/lib/libcudnn_graph.so.9" ] && return
  say 'installing cuDNN and the cuBLAS that it needs, a gigabyte, into build/vendor'
  "$PYTHON" -m pip install -q --no-deps --upgrade --target "$VENDOR/cudnn" nvidia-cudnn-cu13==9.24.0.43 \
    nvidia-cublas==13.1.1.3 || say 'no cuDNN: tests that need it will skip'
}

# A wheel whose libraries are no part of a Python package, with all it depends on.
vendor_prefix() {  # vendor_prefix FOLDER FILE NAME==VERSION…: FILE is in the folder
  [ -e "$VENDOR/$1/$2" ] && return
  say "installing ${*:3} into build/vendor/$1"
  "$PYTHON" -m pip install -q --ignore-installed --prefix "$VENDOR/$1" "${@:3}" ||
    say "no ${*:3}: tests that need it will skip"
}

# Reads what ninja says, and says at each tenth how far it is.
progress() {
  local line tenth=0
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] && ((10 * BASH_REMATCH[1] / BASH_REMATCH[2] > tenth)) || continue
    tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    say "built ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
  done
}

build() {  # build PRESET [TARGET…]
  local preset=$1; shift
  ( cd "$ROOT" && cmake --preset "$preset" -DKILN_PYTHON="${PYTHON:-}" >"$ROOT/build/$preset.configure.log" 2>&1 ) ||
    { cat "$ROOT/build/$preset.configure.log" >&2; return 1; }
  # A file that ccache does not know is compiled without preprocessing it before.
  CCACHE_DEPEND=1 cmake --build "$ROOT/build/$preset" -j"$(nproc)" ${1:+--target "$@"} 2>&1 |
    tee "$ROOT/build/$preset.build.log" | progress ||
    { tail -60 "$ROOT/build/$preset.build.log" >&2; return 1; }
}

prepare() {  # packages, python, and all that the preset builds
  mkdir -p "$ROOT/build"
  install_packages
  ensure_python
  vendor_package nvidia-cuda-nvrtc==13.0.88 nvidia/cu13/lib/libnvrtc.so.13
  vendor_prefix opencl lib/libintelocl.so intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0
  say "building (log: build/$PRESET.build.log)"
  build "$PRESET"
}

prepare_product() {  # packages, python and programs that somebody who trains needs
  mkdir -p "$ROOT/build"
  install_missing --no-install-recommends "${PRODUCT_PACKAGES[@]}"
  ensure_python
  say "building (log: build/$PRESET.build.log)"
  build "$PRESET" product
}

# The environment in which python has torch and kiln, and kiln and kilnd are on the path.
enter() {
  export PATH="$BUILD/bin:$(dirname "$PYTHON"):$PATH"
  export KILN_LIBRARIES_PATH="$VENDOR/nvidia/cu13/lib:$VENDOR/cudnn/nvidia/cudnn/lib:$VENDOR/cudnn/nvidia/cu13/lib${KILN_LIBRARIES_PATH:+:$KILN_LIBRARIES_PATH}"
  export PYTHONPATH="$BUILD/python${PYTHONPATH:+:$PYTHONPATH}"
}
