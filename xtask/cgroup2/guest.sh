#!/bin/bash
# What the guest runs, as root and first process. Each step says how it went; the last line counts those that failed.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
. /work/settings
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/shm /dev/pts /var/tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts devpts /dev/pts
ln -sf /proc/self/fd /dev/fd
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
ulimit -n 524288
failed=0

# step NAME COMMAND…: runs it, and says how long that took.
step() {
    local name=$1 begun=$SECONDS
    shift
    echo "guest: step $name"
    if "$@"; then
        echo "guest: step $name: ok, $((SECONDS - begun)) s"
    else
        echo "guest: step $name: FAILED with $?, $((SECONDS - begun)) s"
        failed=$((failed + 1))
    fi
}

# Cgroups and mounts that there are.
seen() {
    find /sys/fs/cgroup -mindepth 1 -type d | sort
    sort /proc/self/mountinfo
}

# As an ordinary user, in the cgroup at $1.
as_user() {
    local cgroup=$1
    shift
    (
        echo 0 > "$cgroup/cgroup.procs" && cd /tmp/home &&
            exec env HOME=/tmp/home XDG_RUNTIME_DIR=/tmp/home/run setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
    )
}

# What `fanfare doctor` says of the three limits must begin with $1; it must find no orphan.
doctor() {
    local verdict=$1 said
    shift
    said=$("$@" /work/fanfare doctor) || { echo "$said"; return 1; }
    echo "$said"
    [ "$(grep -cE "^$verdict +(memory|process|CPU) limit" <<< "$said")" = 3 ] && grep -q "^0 orphans" <<< "$said"
}

tests() {
    local filter status=0
    echo "SKIPPED: handlers::javascript_dependencies_are_installed_once (no network), handlers::a_missing_npm_is_named (/usr is read-only)"
    for filter in ${FILTERS:-''}; do
        FANFARE_TEST_PATIENCE=$PATIENCE RUST_BACKTRACE=0 /work/it --color never --test-threads 2 \
            --skip javascript_dependencies_are_installed_once --skip a_missing_npm_is_named $filter || status=1
    done
    return $status
}

cat /proc/version /sys/fs/cgroup/cgroup.controllers
seen > /tmp/before
if [ -z "$FILTERS" ]; then
    LIMITS=ok
    grep -qw memory /sys/fs/cgroup/cgroup.controllers || LIMITS='(ok|LACKING)'
    step doctor doctor "$LIMITS" env
    step session env bash /work/session.sh limits
    step cgroup-units /work/unit --color never cgroup::
fi
step tests tests
if [ -z "$FILTERS" ]; then
    user=/sys/fs/cgroup/slice/user
    mkdir -p /tmp/home/run $user/shell $user/platform
    chown -R 65534:65534 /tmp/home
    for controller in memory pids cpu; do
        for dir in /sys/fs/cgroup /sys/fs/cgroup/slice $user; do echo +$controller > $dir/cgroup.subtree_control; done
    done
    step undelegated-doctor doctor LACKING as_user $user/platform
    step undelegated-session as_user $user/shell bash /work/session.sh ''
    # As systemd does it; the platform is alone in its cgroup, as in a scope.
    for dir in $user $user/shell $user/platform; do
        chown 65534:65534 $dir $dir/cgroup.{procs,threads,subtree_control}
    done
    step delegated-doctor doctor "$LIMITS" as_user $user/platform
    step delegated-session as_user $user/shell bash /work/session.sh limits $user/platform
    step delegated-is-empty rmdir $user/shell $user/platform $user /sys/fs/cgroup/slice
fi
rm -rf /tmp/home
seen > /tmp/after
step nothing-is-left diff /tmp/before /tmp/after
echo "guest: failed steps: $failed"
echo o > /proc/sysrq-trigger
sleep 60
