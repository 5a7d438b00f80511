# Sourced by rig: what stands for nodes where no kubelet runs.
# shellcheck shell=bash

# objects NODES: Node objects node1 to nodeN, Ready, and on each two pods: one of the agent's service account, so that a token that is
# bound to it (kubectl create token cloche-agent --bound-object-kind Pod ...) names the node, as that of a real agent does; and one that
# stands for the reservation of what sandboxes may request.
objects() {
  local i pods=()
  {
    echo '{apiVersion: v1, kind: Namespace, metadata: {name: cloche-system}}'
    echo '---'
    echo '{apiVersion: v1, kind: ServiceAccount, metadata: {name: cloche-agent, namespace: cloche-system}}'
    for ((i = 1; i <= $1; i++)); do node_object "$i"; done
    for ((i = 1; i <= $1; i++)); do pod agent "$i"; done
    for ((i = 1; i <= $1; i++)); do pod reservation "$i"; done
  } | kubectl apply --filename - >/dev/null
  # Admission gives it to every new node.
  kubectl taint nodes --all node.kubernetes.io/not-ready- &>/dev/null || true
  for ((i = 1; i <= $1; i++)); do pods+=("cloche-agent-node$i" "cloche-reservation-node$i"); done
  kubectl --namespace cloche-system patch pods "${pods[@]}" --subresource status >/dev/null --patch '{"status":
    {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "'"$(now)"'"}]}}'
  say "node objects"
}

now() { date --utc +%Y-%m-%dT%H:%M:%SZ; }

node_object() {
  cat <<YAML
---
apiVersion: v1
kind: Node
metadata:
  name: node$1
  labels:
    kubernetes.io/hostname: node$1
    kubernetes.io/os: linux
    kubernetes.io/arch: $(architecture)
status:
  capacity: {cpu: "8", memory: 16Gi, ephemeral-storage: 100Gi, pods: "250"}
  allocatable: {cpu: "8", memory: 16Gi, ephemeral-storage: 100Gi, pods: "250"}
  addresses:
  - {type: InternalIP, address: $RIG_NET.0.1}
  - {type: Hostname, address: node$1}
  conditions:
  - {type: Ready, status: "True", reason: Rig, message: said by the rig, lastHeartbeatTime: $(now), lastTransitionTime: $(now)}
YAML
}

# pod WHAT NODE. No time to end in: without a kubelet a pod that is given some is never gone.
pod() {
  cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: cloche-$1-node$2, namespace: cloche-system, labels: {app: cloche-$1}}
spec:
  nodeName: node$2
  serviceAccountName: cloche-agent
  terminationGracePeriodSeconds: 0
  containers: [{name: $1, image: cloche-agent}]
YAML
}

architecture() { dpkg --print-architecture; }
