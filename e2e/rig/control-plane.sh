# Sourced by rig: certificates, and the control plane's processes.
# shellcheck shell=bash disable=SC2154

# authority NAME
authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=rig-$1" \
    -keyout "$pki/$1.key" -out "$pki/$1.crt"
}

# certificate AUTHORITY NAME SUBJECT [ALTERNATIVE-NAMES]
certificate() {
  openssl req -x509 -CA "$pki/$1.crt" -CAkey "$pki/$1.key" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
    -days 365 -subj "$3" -keyout "$pki/$2.key" -out "$pki/$2.crt" -extensions leaf -config <(
      printf '%s\n' '[req]' 'distinguished_name = name' '[name]' '[leaf]' 'basicConstraints = critical, CA:FALSE' \
        'extendedKeyUsage = serverAuth, clientAuth' ${4:+"subjectAltName = $4"}
    )
}

# user NAME SUBJECT: a client certificate, and a kubeconfig that holds it.
user() {
  certificate ca "$1" "$2"
  cat >"$pki/$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: rig
  cluster: {server: "https://$RIG_NET.0.1:$RIG_PORT", certificate-authority-data: "$(base64 -w0 "$pki/ca.crt")"}
users:
- name: $1
  user: {client-certificate-data: "$(base64 -w0 "$pki/$1.crt")", client-key-data: "$(base64 -w0 "$pki/$1.key")"}
contexts:
- name: rig
  context: {cluster: rig, user: $1}
current-context: rig
EOF
}

# certificates MODE NODES: once; those of nodes as they come.
certificates() {
  local i
  {
    if [[ ! -e $pki/done ]]; then
      authority ca
      authority front-ca
      certificate front-ca front-proxy /CN=front-proxy
      certificate ca apiserver /CN=kube-apiserver \
        "IP:$RIG_NET.0.1,IP:$RIG_NET.128.1,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
      user admin /O=system:masters/CN=admin
      user controller-manager /CN=system:kube-controller-manager
      openssl genrsa -out "$pki/tokens.key" 2048
      openssl rsa -in "$pki/tokens.key" -pubout -out "$pki/tokens.pub"
      touch "$pki/done"
    fi
    [[ $1 == cluster ]] || return 0
    [[ -e $pki/scheduler.kubeconfig ]] || user scheduler /CN=system:kube-scheduler
    [[ -e $pki/proxy.kubeconfig ]] || user proxy /CN=system:kube-proxy
    for ((i = 1; i <= $2; i++)); do
      [[ -e $pki/node$i.kubeconfig ]] || user "node$i" "/O=system:nodes/CN=system:node:node$i"
    done
  } 2>>"$RIG_LOG/certificates"
}

control_plane() {
  local etcd=http://127.0.0.1:$((RIG_PORT + 1)) peers=http://127.0.0.1:$((RIG_PORT + 2))
  start etcd etcd --data-dir "$RIG_RUN/etcd" --unsafe-no-fsync \
    --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "$peers" --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers"
  start kube-apiserver kube-apiserver \
    --bind-address "$RIG_NET.0.1" --secure-port "$RIG_PORT" --etcd-servers "$etcd" \
    --service-cluster-ip-range "$RIG_NET.128.0/20" --allow-privileged \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$pki/tokens.pub" --service-account-signing-key-file "$pki/tokens.key" \
    --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" \
    --kubelet-preferred-address-types InternalIP --enable-aggregator-routing \
    --requestheader-client-ca-file "$pki/front-ca.crt" --requestheader-allowed-names front-proxy \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$pki/front-proxy.crt" --proxy-client-key-file "$pki/front-proxy.key"
}

# controllers MODE: with node objects alone nobody tells that a node is well, so nobody may judge that it is not: there a test
# decides what is Ready.
controllers() {
  local set=*
  [[ $1 == cluster ]] || set=*,-node-lifecycle-controller,-taint-eviction-controller
  start kube-controller-manager kube-controller-manager --kubeconfig "$pki/controller-manager.kubeconfig" \
    --leader-elect=false --secure-port 0 --kube-api-qps 500 --kube-api-burst 1000 --controllers "$set" \
    --use-service-account-credentials --root-ca-file "$pki/ca.crt" \
    --service-account-private-key-file "$pki/tokens.key" \
    --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
}
