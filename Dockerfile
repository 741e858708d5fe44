# Images of tenant-webhook, tenant-scheduler and the mock: docker build --target webhook (or scheduler, or mock) .
#
# BINARIES=prebuilt takes static binaries from the context instead of compiling them:
#   docker build --build-arg BINARIES=prebuilt --target webhook -f Dockerfile dist
# BASE_IMAGE=scratch works, too; https to the tenant-controller then needs TENANT_CONTROLLER_CA_FILE.
ARG BUILD_IMAGE=golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot
ARG BINARIES=build

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
    go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=${kube} -X main.version=${VERSION}" -o /out/tenant-scheduler ./cmd/scheduler

FROM build AS build-mock
RUN go build -trimpath -ldflags "-s -w" -o /out/tenant-controller ./mock

FROM scratch AS prebuilt-webhook
COPY tenant-webhook /out/

FROM scratch AS prebuilt-scheduler
COPY tenant-scheduler /out/

FROM scratch AS prebuilt-mock
COPY tenant-controller /out/

FROM ${BINARIES}-mock AS binaries-mock
FROM ${BINARIES}-scheduler AS binaries-scheduler
FROM ${BINARIES}-webhook AS binaries-webhook

FROM ${BASE_IMAGE} AS mock
ARG VERSION=unknown
LABEL org.opencontainers.image.title=tenant-controller org.opencontainers.image.version=${VERSION}
COPY --from=binaries-mock /out/tenant-controller /tenant-controller
USER 65532:65532
EXPOSE 8088
ENTRYPOINT ["/tenant-controller"]

FROM ${BASE_IMAGE} AS scheduler
ARG VERSION=unknown
LABEL org.opencontainers.image.title=tenant-scheduler org.opencontainers.image.version=${VERSION}
COPY --from=binaries-scheduler /out/tenant-scheduler /tenant-scheduler
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/tenant-scheduler"]

FROM ${BASE_IMAGE} AS webhook
ARG VERSION=unknown
LABEL org.opencontainers.image.title=tenant-webhook org.opencontainers.image.version=${VERSION}
COPY --from=binaries-webhook /out/tenant-webhook /tenant-webhook
USER 65532:65532
EXPOSE 9443 8080 8081
ENTRYPOINT ["/tenant-webhook"]
