# Images of tenant-webhook and tenant-scheduler: docker build --target webhook (or scheduler) .
ARG BUILD_IMAGE=golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS build
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH}

FROM build AS build-webhook
RUN go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/tenant-webhook ./cmd/webhook

FROM build AS build-scheduler
RUN kube=$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
    go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=${kube}" -o /out/tenant-scheduler ./cmd/scheduler

FROM ${BASE_IMAGE} AS scheduler
COPY --from=build-scheduler /out/tenant-scheduler /tenant-scheduler
USER 65532:65532
ENTRYPOINT ["/tenant-scheduler"]

FROM ${BASE_IMAGE} AS webhook
COPY --from=build-webhook /out/tenant-webhook /tenant-webhook
USER 65532:65532
ENTRYPOINT ["/tenant-webhook"]
