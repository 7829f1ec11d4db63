package ete.client;

import ete.v1.GenerateRequest;
import ete.v1.GenerationGrpc;
import ete.v1.PromptProgress;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.ByteArrayInputStream;
import java.time.Duration;
import java.util.function.Consumer;
import javax.net.ssl.SSLException;

/** One connection to an {@code ete serve}, for any number of threads. */
public final class Client implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final ManagedChannel channel;
  private final GenerationGrpc.GenerationBlockingStub stub;
  private final Retry retry;
  private final Retry.Listener listener;

  private Client(Builder options) {
    channel = connect(options);
    retry = options.retry;
    listener = options.listener;
    Metadata headers = new Metadata();
    if (options.token != null) {
      headers.put(AUTHORIZATION, "Bearer " + options.token);
    }
    stub =
        GenerationGrpc.newBlockingStub(
            ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers)));
  }

  /**
   * @param address host:port
   * @throws IllegalArgumentException if it is something else; Debian's Netty is without its native library for Unix sockets
   */
  public static Builder builder(String address) {
    return new Builder(address);
  }

  /**
   * Starts a generation.
   *
   * @param timeout until DEADLINE_EXCEEDED, all attempts together; null: none
   */
  public Stream generate(GenerateRequest request, Duration timeout) {
    return new Stream(this, request, timeout, progress -> {});
  }

  /**
   * The same.
   *
   * @param onProgress told how much of the prompt is processed, by whoever waits for the first piece
   */
  public Stream generate(GenerateRequest request, Duration timeout, Consumer<PromptProgress> onProgress) {
    return new Stream(this, request.toBuilder().setPromptProgress(true).build(), timeout, onProgress);
  }

  /** Ends what still runs. */
  @Override
  public void close() {
    channel.shutdownNow();
  }

  ManagedChannel channel() {
    return channel;
  }

  GenerationGrpc.GenerationBlockingStub stub() {
    return stub;
  }

  Retry retry() {
    return retry;
  }

  Retry.Listener listener() {
    return listener;
  }

  private static ManagedChannel connect(Builder options) {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget("dns:///" + options.address)
            .maxInboundMessageSize(Integer.MAX_VALUE)
            .disableRetry()
            .proxyDetector(server -> null);
    if (options.tls == null) {
      return builder.usePlaintext().build();
    }
    if (options.tls.serverName() != null) {
      builder.overrideAuthority(options.tls.serverName());
    }
    SslContextBuilder tls = GrpcSslContexts.forClient();
    if (options.tls.rootCertificates() != null) {
      tls.trustManager(new ByteArrayInputStream(options.tls.rootCertificates()));
    }
    if (options.tls.certificate() != null) {
      tls.keyManager(
          new ByteArrayInputStream(options.tls.certificate()),
          new ByteArrayInputStream(options.tls.privateKey()));
    }
    try {
      return builder.sslContext(tls.build()).build();
    } catch (SSLException error) {
      throw new IllegalArgumentException("tls: " + error.getMessage(), error);
    }
  }

  /** How to connect. */
  public static final class Builder {
    private final String address;
    private final String host;
    private Tls tls;
    private String token;
    private Retry retry = Retry.DEFAULT;
    private Retry.Listener listener = (error, attempt, delay) -> {};

    private Builder(String address) {
      if (address.startsWith("unix:")) {
        throw new IllegalArgumentException(
            "address \"" + address + "\": this client reaches host:port, not Unix sockets");
      }
      int colon = address.lastIndexOf(':');
      if (colon < 1 || address.indexOf('/') >= 0 || !isPort(address.substring(colon + 1))) {
        throw new IllegalArgumentException("address \"" + address + "\": host:port is expected");
      }
      this.address = address;
      this.host = address.substring(0, colon);
    }

    /** Null, as by default: not encrypted. */
    public Builder tls(Tls value) {
      tls = value;
      return this;
    }

    /** Sent as {@code authorization: Bearer TOKEN}, in the clear only to this machine. */
    public Builder token(String value) {
      token = value;
      return this;
    }

    public Builder retry(Retry value) {
      retry = value;
      return this;
    }

    public Builder onRetry(Retry.Listener value) {
      listener = value;
      return this;
    }

    /**
     * @throws IllegalArgumentException if the options contradict each other
     */
    public Client build() {
      if (token != null && tls == null && !isLocal()) {
        throw new IllegalArgumentException(
            "token: " + address + " is another machine and the connection is not encrypted; give tls");
      }
      return new Client(this);
    }

    private static boolean isPort(String text) {
      return text.matches("\\d{1,5}") && Integer.parseInt(text) <= 65535;
    }

    private boolean isLocal() {
      return host.equals("localhost") || host.equals("[::1]") || host.matches("127(\\.\\d{1,3}){3}");
    }
  }
}
