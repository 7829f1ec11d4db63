package ete.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Tries again, while nothing has been handed out, when the server is not available, and whenever it says after which delay to
 * come back. Without that the delay doubles from initial to maximum, each a fifth more or less.
 *
 * @param attempts at least 1
 */
public record Retry(int attempts, Duration initial, Duration maximum) {
  public static final Retry DEFAULT = new Retry(5, Duration.ofMillis(200), Duration.ofSeconds(5));

  /** Is told of each new attempt. */
  @FunctionalInterface
  public interface Listener {
    /**
     * @param attempt the number of the one that ended with {@code error}, from 1 on
     * @param delay until the next
     */
    void onRetry(EteException error, int attempt, Duration delay);
  }

  public Retry {
    if (attempts < 1 || initial.isNegative() || maximum.compareTo(initial) < 0) {
      throw new IllegalArgumentException("retry: at least 1 attempt, and 0 <= initial <= maximum");
    }
  }

  /** After attempt 1, 2, ... ended with {@code error}; null: it stands. */
  Duration delay(EteException error, int attempt) {
    if (attempt >= attempts) {
      return null;
    }
    if (error.retryDelay().isPresent()) {
      return error.retryDelay().get().isNegative() ? null : error.retryDelay().get();
    }
    if (error.code() != Status.Code.UNAVAILABLE) {
      return null;
    }
    // Past 2^30 the maximum has long been reached.
    double doubled = initial.toNanos() * Math.pow(2, Math.min(attempt - 1, 30));
    double jitter = ThreadLocalRandom.current().nextDouble(0.8, 1.2);
    return Duration.ofNanos((long) (Math.min(maximum.toNanos(), doubled) * jitter));
  }
}
