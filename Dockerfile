# The proxy alone, as a user without rights, on a base with nothing but libc and CA certificates.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin ota-pacer
# The home of the config and the CA, owned by the user that runs the proxy.
RUN mkdir -p /data/ca

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/ota-pacer /usr/local/bin/ota-pacer
COPY --from=build --chown=nonroot:nonroot /data /data
WORKDIR /data
VOLUME /data/ca
EXPOSE 8080 9090
ENTRYPOINT ["ota-pacer"]
CMD ["serve", "--config", "/data/ota-pacer.yaml"]
