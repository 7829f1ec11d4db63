package ete.client;

import ete.v1.Finish;
import ete.v1.GenerateReply;
import ete.v1.GenerateRequest;
import ete.v1.GenerationGrpc;
import ete.v1.Piece;
import ete.v1.PromptInfo;
import ete.v1.PromptProgress;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Iterator;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** The pieces of one generation, for one thread; cancel() may be called by any. */
public final class Stream implements AutoCloseable {
  private final Client client;
  private final GenerateRequest request;
  private final Deadline deadline;
  private final Consumer<PromptProgress> onProgress;
  // What a call is made in can cancel it.
  private final Context.CancellableContext context = Context.current().withCancellation();
  private final CountDownLatch cancelled = new CountDownLatch(1);
  private Iterator<GenerateReply> call;
  private PromptInfo prompt;
  private Finish finish;
  private int attempt;
  private boolean handedOut;

  Stream(Client client, GenerateRequest request, Duration timeout, Consumer<PromptProgress> onProgress) {
    this.client = client;
    this.request = request;
    this.onProgress = onProgress;
    this.deadline = timeout == null ? null : Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
  }

  /**
   * Waits for a piece.
   *
   * @return null when the text is complete
   * @throws EteException otherwise; the pieces before it stand
   */
  public Piece next() {
    while (true) {
      try {
        if (call == null) {
          start();
        }
        while (call.hasNext()) {
          GenerateReply reply = call.next();
          switch (reply.getReplyCase()) {
            case PROMPT -> prompt = reply.getPrompt();
            case FINISH -> finish = reply.getFinish();
            case PROGRESS -> onProgress.accept(reply.getProgress());
            case PIECE -> {
              handedOut = true;
              return reply.getPiece();
            }
            default -> {}
          }
        }
        return null;
      } catch (StatusRuntimeException error) {
        tryAgain(new EteException(error));
      }
    }
  }

  /** What the server made of the prompt; null before the first piece. */
  public PromptInfo prompt() {
    return prompt;
  }

  /** Why the generation ended; null before next() has returned null. */
  public Finish finish() {
    return finish;
  }

  /** Ends the generation on the server too; next() then throws CANCELLED. */
  public void cancel() {
    cancelled.countDown();
    context.cancel(null);
  }

  /** Cancels what still runs. */
  @Override
  public void close() {
    cancel();
  }

  private void start() {
    attempt++;
    GenerationGrpc.GenerationBlockingStub stub =
        deadline == null ? client.stub() : client.stub().withDeadline(deadline);
    context.run(() -> call = stub.generate(request));
  }

  // Throws the error unless the generation is to be started once more.
  private void tryAgain(EteException error) {
    Duration delay =
        handedOut || cancelled.getCount() == 0 ? null : client.retry().delay(error, attempt);
    if (delay == null || (deadline != null && deadline.timeRemaining(TimeUnit.NANOSECONDS) <= delay.toNanos())) {
      throw error;
    }
    client.listener().onRetry(error, attempt, delay);
    try {
      // When it is cancelled meanwhile the next call says so.
      cancelled.await(delay.toNanos(), TimeUnit.NANOSECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new EteException(
          Status.CANCELLED.withDescription("interrupted while waiting to try again"), null, interrupted);
    }
    call = null;
    client.channel().resetConnectBackoff();
  }
}
