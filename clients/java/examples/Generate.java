import com.google.protobuf.ByteString;
import ete.client.Client;
import ete.client.EteException;
import ete.client.Retry;
import ete.client.Stream;
import ete.client.Tls;
import ete.v1.Finish;
import ete.v1.GenerateRequest;
import ete.v1.Piece;
import ete.v1.TokenLogprobs;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;

/** Streams the continuation of a prompt to stdout; everything else is said on stderr. */
public final class Generate {
  private static final String USAGE =
      """
      Generate [OPTIONS] HOST:PORT PROMPT
        --max-tokens N  --seed N  --temperature X  --top-p X
        --stop TEXT           may be repeated
        --logprobs N          a line for each token, with N others
        --progress            tell how much of the prompt is processed
        --deadline SECONDS
        --cancel-after N      cancel after N pieces
        --attempts N          1: do not try again [5]
        --tls                 with Java's root certificates
        --root-cert FILE      TLS with these root certificates
        --cert FILE --key FILE  the client's own certificate and its key (PKCS #8)
        --server-name NAME    of the server's certificate [that of the address]
        --token-file FILE     holds the bearer token
        --linger SECONDS      stay connected this long afterwards""";

  private final GenerateRequest.Builder request = GenerateRequest.newBuilder();
  private final List<String> arguments;
  private int next;
  private boolean progress;
  private Duration deadline;
  private int cancelAfter;
  private int attempts = Retry.DEFAULT.attempts();
  private boolean tls;
  private byte[] rootCert;
  private byte[] cert;
  private byte[] key;
  private String serverName;
  private String token;
  private Duration linger = Duration.ZERO;

  private Generate(String[] arguments) throws IOException {
    this.arguments = List.of(arguments);
    while (next < arguments.length && arguments[next].startsWith("--")) {
      option(arguments[next++]);
    }
    if (arguments.length - next != 2) {
      throw new IllegalArgumentException("HOST:PORT and PROMPT are expected\n" + USAGE);
    }
    request.setText(arguments[next + 1]);
  }

  private void option(String name) throws IOException {
    switch (name) {
      case "--max-tokens" -> request.getStoppingBuilder().setMaxTokens(Integer.parseInt(value()));
      case "--seed" -> request.getSamplingBuilder().setSeed(Long.parseUnsignedLong(value()));
      case "--temperature" -> request.getSamplingBuilder().setTemperature(Float.parseFloat(value()));
      case "--top-p" -> request.getSamplingBuilder().setTopP(Float.parseFloat(value()));
      case "--stop" -> request.getStoppingBuilder().addStop(ByteString.copyFromUtf8(value()));
      case "--logprobs" -> request.getLogprobsBuilder().setTop(Integer.parseInt(value()));
      case "--progress" -> progress = true;
      case "--deadline" -> deadline = seconds();
      case "--cancel-after" -> cancelAfter = Integer.parseInt(value());
      case "--attempts" -> attempts = Integer.parseInt(value());
      case "--tls" -> tls = true;
      case "--root-cert" -> rootCert = file();
      case "--cert" -> cert = file();
      case "--key" -> key = file();
      case "--server-name" -> serverName = value();
      case "--token-file" -> token = Files.readString(Path.of(value())).strip();
      case "--linger" -> linger = seconds();
      default -> throw new IllegalArgumentException(name + " is not an option\n" + USAGE);
    }
  }

  private String value() {
    if (next == arguments.size()) {
      throw new IllegalArgumentException(arguments.get(next - 1) + ": a value is expected");
    }
    return arguments.get(next++);
  }

  private Duration seconds() {
    return Duration.ofNanos((long) (Double.parseDouble(value()) * 1e9));
  }

  private byte[] file() throws IOException {
    return Files.readAllBytes(Path.of(value()));
  }

  private Client connect() {
    Client.Builder builder =
        Client.builder(arguments.get(next))
            .token(token)
            .retry(new Retry(attempts, Retry.DEFAULT.initial(), Retry.DEFAULT.maximum()))
            .onRetry(
                (error, attempt, delay) ->
                    say("retry attempt=%d delay=%.3f %s", attempt, delay.toNanos() / 1e9, error.getMessage()));
    if (tls || rootCert != null || cert != null || key != null || serverName != null) {
      builder.tls(new Tls(rootCert, cert, key, serverName));
    }
    return builder.build();
  }

  private void generate(Client client) {
    int pieces = 0;
    try (Stream stream = start(client)) {
      for (Piece piece; (piece = stream.next()) != null; ) {
        show(piece);
        if (++pieces == cancelAfter) {
          stream.cancel();
        }
      }
      Finish finish = stream.finish();
      say(
          "finish reason=%s pieces=%d prompt_tokens=%d generated_tokens=%d",
          finish.getReason().name().replaceFirst("FINISH_REASON_", ""),
          pieces,
          finish.getPromptTokens(),
          finish.getGeneratedTokens());
    }
  }

  private Stream start(Client client) {
    if (!progress) {
      return client.generate(request.build(), deadline);
    }
    return client.generate(
        request.build(),
        deadline,
        told -> say("progress %d of %d", told.getProcessedTokens(), told.getPromptTokens()));
  }

  private static void show(Piece piece) {
    byte[] text = piece.getText().toByteArray();
    System.out.write(text, 0, text.length);
    System.out.flush();
    for (TokenLogprobs token : piece.getLogprobsList()) {
      StringBuilder line = new StringBuilder("logprob %d %.4f".formatted(token.getId(), token.getLogprob()));
      for (int i = 0; i < token.getTopIdsCount(); ++i) {
        line.append(" %d:%.4f".formatted(token.getTopIds(i), token.getTopLogprobs(i)));
      }
      say("%s", line);
    }
  }

  private static void say(String format, Object... values) {
    System.err.println(format.formatted(values));
  }

  private static int run(String[] arguments) throws IOException, InterruptedException {
    Generate example = new Generate(arguments);
    try (Client client = example.connect()) {
      try {
        example.generate(client);
        return 0;
      } catch (EteException error) {
        say("error code=%s field=%s %s", error.code(), error.field().orElse("-"), error.description());
        return 1;
      } finally {
        Thread.sleep(example.linger.toMillis());
      }
    }
  }

  public static void main(String[] arguments) throws InterruptedException {
    Locale.setDefault(Locale.ROOT);
    int code;
    try {
      code = run(arguments);
    } catch (IOException | IllegalArgumentException error) {
      say("generate: %s", error);
      code = 2;
    }
    System.exit(code);
  }
}
