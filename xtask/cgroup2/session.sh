#!/bin/bash
# One platform from its start to its end, with a `kill -9` between: a function does what it must not, and whoever asks
# is told which limit held it. With `limits` as first argument they are enforced, in the cgroup that is the second.
limited=$1
cgroup=${2:-}
set -eu
cd "$(mktemp -d)"
export FANFARE_DATA_DIR=$PWD/data FANFARE_RUN_DIR=$PWD/run
cat > bad.py <<'EOF'
import errno, os, signal
def handler(event, context):
    what = event.get("do")
    if what == "allocate": return len(bytearray(400 << 20))
    if what == "exit": os._exit(3)
    if what == "fork":
        children = []
        try:
            while len(children) < 1000:
                pid = os.fork()
                if pid == 0:
                    signal.pause()
                children.append(pid)
        except OSError as e:
            what = errno.errorcode[e.errno]
        for pid in children: os.kill(pid, 9)
        for pid in children: os.waitpid(pid, 0)
        return [what, len(children) < 128]
    if what == "fill":
        try:
            with open("/tmp/x", "wb", buffering=0) as f:
                while True: f.write(b"x" * (1 << 20))
        except OSError as e:
            os.unlink("/tmp/x")
            return errno.errorcode[e.errno]
    return "fine"
EOF
mkfifo said
platform=
trap '[ -z "$platform" ] || kill -9 $platform' EXIT

# Starts the platform and waits until it says where it is.
up() {
    local line
    (
        [ -z "$cgroup" ] || echo 0 > "$cgroup/cgroup.procs"
        exec /work/fanfare up
    ) > said 2> err &
    platform=$!
    exec 3< said
    while read -r -t 120 line <&3; do
        case $line in *"control API"*) return 0 ;; esac
    done
    echo "fanfare up did not start:"
    cat err
    return 1
}

# The function's answer to $1, after its status and the platform's reason.
ask() {
    curl -sS --max-time 90 -D head -o body http://127.0.0.1:8080/function/bad -d "{\"do\": \"$1\"}"
    echo "$(sed -n '1s/[^ ]* \([0-9]*\).*/\1/p' head) $(tr -d '\r' < head | sed -n 's/^x-fanfare-reason: //Ip') $(cat body)"
}

expect() {
    local said
    said=$(ask "$1")
    case $said in
        $2) echo "  $1: ${said:0:160}" ;;
        *) echo "  $1: expected $2, got $said"; tail -5 err; return 1 ;;
    esac
}

# Waits until nothing is left without an owner: what a killed daemon leaves goes when its launcher ends.
clean() {
    local try
    for try in {1..60}; do
        /work/fanfare doctor > doctor.out 2>&1 || true
        grep -q '^0 orphans' doctor.out && return 0
        sleep 0.5
    done
    grep -A30 'orphan' doctor.out
    return 1
}

up
/work/fanfare deploy ./bad.py --timeout 80s --start-timeout 200s > deployed 2>&1 || { cat deployed err; exit 1; }
expect nothing '200  *fine*'
if [ -n "$limited" ]; then
    # Where everything is slow the connection's end is known before its cause; the log has that.
    expect allocate '502 *'
    for try in {1..60}; do
        /work/fanfare logs bad > logged
        grep -q 'killed: out of memory (limit 128 MiB)' logged && break
        sleep 0.5
    done
    grep 'killed: out of memory (limit 128 MiB)' logged
    expect fork '200  *EAGAIN*true*'
else
    grep -q 'not enforced on this node: the limits on memory, processes' <(/work/fanfare logs bad) ||
        { echo "the log does not say that limits are not enforced"; /work/fanfare logs bad; exit 1; }
fi
expect fill '200  *ENOSPC*'
expect exit '* *'
head -1 head | grep -qv ' 200' && ! grep -qi '^x-fanfare-reason: out-of-memory' head
expect nothing '200  *fine*'
kill -9 $platform
wait $platform || true
platform=
clean
up
expect nothing '200  *fine*'
clean
kill $platform
wait $platform
platform=
clean
cd / && rm -rf "$OLDPWD"
