# Sourced by rig: Cloche in it. Where there is a kubelet the chart runs all of it; else its parts run on the machine, with the rights
# that the chart gives them.
# shellcheck shell=bash disable=SC2154

charts=$here/../../charts

# cloche PROGRAMS ARTIFACTS: PROGRAMS has cloche-operator, cloche-gateway and cloche-agent, ARTIFACTS has runsc, cloche-init and images.
cloche() {
  helm upgrade --install cloche-crds "$charts/cloche-crds" >/dev/null
  case $(<"$RIG_RUN/mode") in
    cluster) by_helm ;;
    control-plane) by_hand "$@" ;;
  esac
  until_ok 60 kubectl get --raw /apis/subresources.cloche.dev/v1alpha1
  until_ok 60 offered "$(<"$RIG_RUN/nodes")"
  say "Cloche serves"
}

offered() {
  local ready='{.items[*].status.conditions[?(@.type=="Ready")].status}'
  [[ $(kubectl get sandboxnodes -o jsonpath="$ready" | tr ' ' '\n' | grep -c True) == "$1" ]]
}

# Every node has the rig's registry on its loopback too: plain HTTP is for nothing else.
by_helm() {
  helm upgrade --install cloche "$charts/cloche" --namespace cloche-system --create-namespace --wait --timeout 3m >/dev/null \
    --set image.registry="$RIG_NET.0.1:5000/cloche",image.pullPolicy=Always,budget.cpu=1,budget.memory=4Gi \
    --set 'agent.registryMirrors={docker.io=127.0.0.1:5000}' --set 'agent.insecureRegistries={127.0.0.1:5000}'
}

by_hand() {
  local programs=$1 artifacts=$2 i place=$RIG_RUN/cloche
  mkdir -p "$place"
  helm template cloche "$charts/cloche" --namespace cloche-system --no-hooks | without_pods >"$place/chart.yaml"
  {
    cat "$place/chart.yaml"
    # Where the gateway's Service leads.
    cat <<YAML
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cloche-gateway-process, namespace: cloche-system, labels: {kubernetes.io/service-name: cloche-gateway}}
addressType: IPv4
ports: [{name: https, port: 6444}]
endpoints: [{addresses: [$RIG_NET.0.1], conditions: {ready: true}}]
YAML
  } | kubectl apply --server-side --force-conflicts --filename - >/dev/null
  account cloche-operator operator
  account cloche-gateway gateway
  start operator "$programs/cloche-operator" --kubeconfig "$place/operator" --listen "$RIG_NET.0.1:6445"
  start gateway "$programs/cloche-gateway" --kubeconfig "$place/gateway" --listen "$RIG_NET.0.1:6444"
  for ((i = 1; i <= $(<"$RIG_RUN/nodes"); i++)); do
    account cloche-agent "node$i" --bound-object-kind Pod --bound-object-name "cloche-agent-node$i"
    start "agent$i" "$programs/cloche-agent" node --node-name "node$i" --reservation app=cloche-reservation --kubeconfig "$place/node$i" \
      --operator "$RIG_NET.0.1:6445" --listen "$RIG_NET.0.1:$((7443 + i))" --state "$place/state$i" --run "/run/cloche-rig-$RIG_ID-$i" --cgroup-parent "rig$RIG_ID-cloche$i" \
      --runsc "$artifacts/runsc" --init "$artifacts/cloche-init" --images "$artifacts/images" --memory-budget 4Gi
  done
}

# without_pods: of a stream of objects, those that make no pods.
without_pods() {
  awk 'BEGIN { RS = "---\n"; ORS = "" } !/\nkind: (Deployment|DaemonSet|Job)\n/ { print "---\n" $0 }'
}

# account NAME FILE [TOKEN-OPTION...]: a kubeconfig of a service account.
account() {
  local name=$1 file=$place/$2
  shift 2
  kubectl config view --raw --minify >"$file"
  kubectl --kubeconfig "$file" config set-credentials "$name" >/dev/null \
    --token "$(kubectl create token "$name" --namespace cloche-system --duration 24h "$@")"
  kubectl --kubeconfig "$file" config set-context --current --user "$name" >/dev/null
}

# cloche_down: sandboxes outlive their agents, so they are ended by their groups, which have no other processes.
cloche_down() {
  local group file
  for group in /sys/fs/cgroup/*/"rig$RIG_ID"-cloche*; do
    [[ -d $group ]] || continue
    until_ok 20 emptied "$group"
    find "$group" -depth -type d -exec rmdir {} +
  done
  rm -rf "/run/cloche-rig-$RIG_ID"-*
}

# emptied GROUP: kill what is in it; whether nothing was.
emptied() {
  local file id found=0
  while read -r file; do
    while read -r id; do
      found=1
      kill -KILL "$id" || true
    done <"$file"
  done < <(find "$1" -name cgroup.procs)
  ((found == 0))
}
