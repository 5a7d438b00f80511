# Sourced by rig: nodes with a kubelet, of a cluster.
# shellcheck shell=bash disable=SC2154

# scheduler_and_dns: what a cluster has on the machine beside its control plane.
scheduler_and_dns() {
  start kube-scheduler kube-scheduler --kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false --secure-port 0
  cat >"$RIG_RUN/Corefile" <<YAML
. {
  bind $RIG_NET.0.1
  kubernetes cluster.local {
    kubeconfig $KUBECONFIG rig
  }
}
YAML
  start dns dns -conf "$RIG_RUN/Corefile"
}

# nodes_up NODES: start those that do not run, and wait for all.
nodes_up() {
  local i
  for ((i = 1; i <= $1; i++)); do node_up "$i"; done
  for ((i = 1; i <= $1; i++)); do
    until_ok 60 node "$i" curl -sf http://127.0.0.1:10248/healthz # after a crash, Ready is true before it is
    until_ok 60 kubectl wait --for=condition=Ready "node/node$i" --timeout=30s
    say "node$i Ready"
  done
}

# node_up N: give node N its namespaces (its processes are node-init's) and a cable to the bridge.
node_up() {
  local i=$1
  ! pid "node$i" >/dev/null || return 0
  crash "$i" # what an unexpected end may have left
  start "node$i" unshare --mount --net --pid --uts --ipc --fork --kill-child "$here/node-init" "$i"
  until_ok 5 node_pid "$i"
  ip link add "${bridge}n$i" type veth peer name eth0 netns "$(node_pid "$i")"
  ip link set "${bridge}n$i" master "$bridge" up
  ip route replace "$RIG_NET.$((64 + i)).0/24" via "$RIG_NET.0.$((10 + i))"
  ((i > 1)) || ip route replace "$RIG_NET.128.0/20" via "$RIG_NET.0.11" # Services, by node 1's kube-proxy
}

# gvisor: nodes have the handler anyway; containerd looks for its shim when a pod asks for it.
gvisor() {
  kubectl apply --filename - >/dev/null <<YAML
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: gvisor}, handler: gvisor}
YAML
}

# node_pid N: print the id of the first process inside node N's namespaces.
node_pid() {
  local outer
  outer=$(pid "node$1") && grep -o '[0-9]*' "/proc/$outer/task/$outer/children"
}

# crash N: a node's first process takes all others in its namespaces along.
crash() {
  local id
  id=$(node_pid "$1") && kill -KILL "$id"
  ip link del "${bridge}n$1" 2>/dev/null || true # the kernel takes a dead node's cable away too, but only some time later
  until_ok 20 not pid "node$1"
  until_ok 10 remove_cgroups "/node$1"
}

remove_cgroups() {
  local group
  for group in /sys/fs/cgroup/*/"rig$RIG_ID$1"; do
    [[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} + || return
  done
}

# node N COMMAND...: run a command inside node N.
node() {
  local n=$1 id group
  id=$(node_pid "$n") || die "no node $n"
  shift
  (
    for group in /sys/fs/cgroup/*/"rig$RIG_ID/node$n"; do echo "$BASHPID" >"$group/cgroup.procs"; done
    exec nsenter --target "$id" --all "$@"
  )
}
