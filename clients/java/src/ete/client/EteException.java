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

  // gRPC's own name for it (gRFC A6). Milliseconds; below 0: do not try again.
  private static final Metadata.Key<String> PUSHBACK =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
  private static final Pattern FIELD =
      Pattern.compile("([a-z][a-z0-9_]*(?:\\[\\d+\\])?(?:\\.[a-z][a-z0-9_]*(?:\\[\\d+\\])?)*): ");

  private final Status.Code code;
  private final String description;
  private final String field;
  private final Duration retryDelay;

  EteException(StatusRuntimeException error) {
    this(error.getStatus(), pushback(error.getTrailers()), error);
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

  private static Duration pushback(Metadata trailers) {
    String value = trailers == null ? null : trailers.get(PUSHBACK);
    if (value == null) {
      return null;
    }
    try {
      return Duration.ofMillis(Integer.parseInt(value));
    } catch (NumberFormatException error) {
      return Duration.ofMillis(-1); // as gRFC A6 has it
    }
  }
}
