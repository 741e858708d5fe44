package main

// workloads is what the tenant creates: 3 × 1, 2 × 2 and 1 network. A Job's pods run for five seconds on the fake nodes.
const workloads = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: tenant-a}
spec:
  replicas: 3
  selector: {matchLabels: {app: serve}}
  template:
    metadata:
      labels: {app: serve}
      annotations: {rdma.vf: "1"}
    spec:
      containers: [{name: app, image: serve}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: tenant-a}
spec:
  completions: 2
  parallelism: 2
  template:
    metadata:
      annotations: {rdma.vf: "2", devcluster/run-seconds: "5"}
    spec:
      restartPolicy: Never
      containers: [{name: app, image: train}]
---
apiVersion: v1
kind: Pod
metadata:
  name: physical
  namespace: tenant-a
  annotations: {rdma.pf: "1"}
spec:
  containers: [{name: app, image: app}]
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: tenant-a}
spec:
  containers: [{name: app, image: app}]
`

const badPod = `
metadata:
  name: bad
  namespace: tenant-a
  annotations: {rdma.vf: "1.5"}
spec:
  containers: [{name: app, image: app}]
`
