# Shared by scripts/memest, scripts/test and .ci/run: installs what is missing, configures and builds. Sourced from the repository's root.

# The packages of Debian and Ubuntu that a build needs, each with a probe: a program, or a header below an include folder.
# "package program NAME" or "package header PATH".
core_packages="cmake program cmake
ninja-build program ninja
g++ program ${CXX:-g++}
libcli11-dev header CLI/CLI.hpp
nlohmann-json3-dev header nlohmann/json.hpp
libfmt-dev header fmt/core.h
zlib1g-dev header zlib.h"
test_packages="catch2 header catch2
libbenchmark-dev header benchmark/benchmark.h
python3 program python3
python3-jsonschema python jsonschema"

say() { echo "memest: $*" >&2; }

present() {  # KIND NAME
  case $1 in
    program) command -v "$2" >/dev/null ;;
    header) [ -e "/usr/include/$2" ] || [ -e "/usr/local/include/$2" ] ;;
    python) python3 -c "import $2" 2>/dev/null ;;
  esac
}

# Installs the missing ones of a list as above; says nothing where all are there.
need() {
  local package kind name missing=() as_root=()
  while read -r package kind name; do
    present "$kind" "$name" || missing+=("$package")
  done <<<"$1"
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    say "missing, and there is no apt-get to install it: ${missing[*]} (names of the Debian packages)"
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "missing: ${missing[*]}; run as root or install sudo"; return 1; }
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  mkdir -p build
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300)
  # The lists may be absent or old: a first failure is answered with a fresh one.
  "${install[@]}" install --no-install-recommends "${missing[@]}" >build/install.log 2>&1 </dev/null && return 0
  if ! { "${install[@]}" update && "${install[@]}" install --no-install-recommends "${missing[@]}"; } >build/install.log 2>&1 </dev/null; then
    tail -n 30 build/install.log >&2
    say "could not install ${missing[*]}"
    return 1
  fi
}

# LibTorch for the plugin, in build/libtorch where LibTorch_ROOT names no other: the wheel alone, with the two libraries that its CPU half is
# linked to, and without its CUDA half. Sets LibTorch_ROOT; fails, with a word on stderr, where it cannot be had.
libtorch() {
  [ -n "${LibTorch_ROOT:-}" ] && return 0
  local folder=$PWD/build/libtorch
  if [ ! -e "$folder/complete" ]; then
    say "installing LibTorch in build/libtorch (540 MB to load)"
    rm -rf "$folder"
    mkdir -p "$folder"
    if ! python3 -m pip install --quiet --no-deps --target "$folder" torch==2.15.0 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-cupti>=13,<14' \
      >build/libtorch.log 2>&1 </dev/null; then
      tail -n 3 build/libtorch.log >&2
      say "no LibTorch: the plugin for TorchScript is left out, and its tests are skipped"
      return 1
    fi
    rm -f "$folder"/torch/lib/libtorch_cuda*.so "$folder"/torch/lib/libtorch_nvshmem.so
    touch "$folder/complete"
  fi
  LibTorch_ROOT=$folder/torch
}

# Is build/PRESET configured for this folder, with all the given KEY=VALUE in its cache?
configured() {
  local cache=build/$1/CMakeCache.txt setting
  [ -e "build/$1/build.ninja" ] && grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache" || return 1
  for setting in "${@:2}"; do
    grep -qxE "${setting%%=*}:[A-Z]+=${setting#*=}" "$cache" || return 1
  done
}

# configure PRESET [KEY=VALUE]...
configure() {
  local preset=$1 log=build/configure-$1.log
  shift
  mkdir -p build
  # A tree made for another folder (a copied checkout) is of no use.
  if [ -e "build/$preset/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "build/$preset/CMakeCache.txt"; then
    rm -rf "build/$preset"
  fi
  if ! cmake --preset "$preset" "${@/#/-D}" >"$log" 2>&1; then
    cat "$log" >&2
    say "could not configure (CMake 3.25 or newer is needed; this is $(cmake --version 2>/dev/null | head -n 1))"
    return 1
  fi
}

# build PRESET [TARGET]...: quiet, with one line on stderr where there is something to compile; the whole output on failure.
build() {
  local preset=$1 log=build/build-$1.log line shown=
  shift
  ninja -C "build/$preset" "$@" 2>&1 </dev/null | while IFS= read -r line; do
    echo "$line"
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (Building|Linking) ]] || continue
    if [ -t 2 ]; then
      printf '\r\e[Kmemest: building %s/%s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" >&2
      [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ] && printf '\r\e[K' >&2
    elif [ -z "$shown" ]; then
      say "building ${BASH_REMATCH[2]} files"
      shown=1
    fi
  done >"$log"
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    [ -t 2 ] && echo >&2
    cat "$log" >&2
    say "the build failed (also in $log)"
    return 1
  fi
}

# with_lock COMMAND...: one build at a time in this folder.
with_lock() {
  mkdir -p build
  local status
  exec 9>build/.lock
  flock 9
  "$@"
  status=$?
  exec 9>&-
  return $status
}
