package ete.client;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What a call ends with other than success. */
public final class EteException extends RuntimeException {
  private static final long serialVersionUID = 1;

  // Milliseconds, told by the server.
  private static final Metadata.Key<String> RETRY_AFTER =
      Metadata.Key.of("retry-after-ms", Metadata.ASCII_STRING_MARSHALLER);
  // What proxies tell (gRFC A6); below 0, or no number: do not try again.
  private static final Metadata.Key<String> PUSHBACK =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
  private static final Duration DAY = Duration.ofDays(1);
  private static final Pattern FIELD =
      Pattern.compile("([a-z][a-z0-9_]*(?:\\[\\d+\\])?(?:\\.[a-z][a-z0-9_]*(?:\\[\\d+\\])?)*): ");

  private final Status.Code code;
  private final String description;
  private final String field;
  private final Duration retryDelay;

  EteException(StatusRuntimeException error) {
    this(error.getStatus(), retryDelay(error.getTrailers()), error);
  }

  EteException(Status status, Duration retryDelay, Throwable cause) {
    super(status.getCode() + ": " + describe(status), cause);
    this.code = status.getCode();
    this.description = describe(status);
    this.retryDelay = retryDelay;
    Matcher match = FIELD.matcher(description);
    this.field = code == Status.Code.INVALID_ARGUMENT && match.lookingAt() ? match.group(1) : null;
  }

  public Status.Code code() {
    return code;
  }

  /** The message without the code. */
  public String description() {
    return description;
  }

  /** The request's field that was refused. */
  public Optional<String> field() {
    return Optional.ofNullable(field);
  }

  /** What the server asks to wait; negative when it asks not to try again. */
  public Optional<Duration> retryDelay() {
    return Optional.ofNullable(retryDelay);
  }

  // Why a connection failed is only in the cause.
  private static String describe(Status status) {
    String text = status.getDescription() == null ? "" : status.getDescription();
    return status.getCause() == null ? text : text + " (" + status.getCause().getMessage() + ")";
  }

  private static Duration retryDelay(Metadata trailers) {
    if (trailers == null) {
      return null;
    }
    if (trailers.containsKey(PUSHBACK)) {
      return milliseconds(trailers.get(PUSHBACK)).orElse(Duration.ofMillis(-1));
    }
    return milliseconds(trailers.get(RETRY_AFTER)).filter(delay -> !delay.isNegative()).orElse(null);
  }

  // Empty: no number, or of more than a day.
  private static Optional<Duration> milliseconds(String text) {
    try {
      return text == null
          ? Optional.empty()
          : Optional.of(Duration.ofMillis(Integer.parseInt(text))).filter(delay -> delay.compareTo(DAY) <= 0);
    } catch (NumberFormatException error) {
      return Optional.empty();
    }
  }
}
