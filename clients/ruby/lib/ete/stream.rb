# frozen_string_literal: true

require "grpc"

module Ete
  # text: whole characters, "" while one is incomplete or may begin a stop string; ids: those behind it; logprobs: one
  # V1::TokenLogprobs for each when the request asked.
  Piece = Struct.new(:text, :ids, :logprobs)

  # The pieces of one generation, to be read once; cancel may be called by any thread.
  class Stream
    include Enumerable

    # What the server made of the prompt, from the first piece on, and why the generation ended, after the last.
    attr_reader :prompt, :finish

    def initialize(start, retry_policy, on_retry, timeout, on_progress)
      @start = start
      @retry_policy = retry_policy
      @on_retry = on_retry
      @on_progress = on_progress
      @deadline = Time.now + timeout if timeout
      @mutex = Mutex.new
      @woken = ConditionVariable.new
      @cancelled = false
      @attempt = 0
      @handed_out = false
    end

    # Raises Ete::Error; the pieces before it stand. Leaving the block early cancels the generation.
    def each(&block)
      return enum_for unless block

      attempt_once(&block)
      self
    rescue GRPC::BadStatus => e
      wait_to_try_again(Error.from(e))
      retry
    ensure
      @operation&.cancel unless @finish
    end

    # Ends the generation on the server too; each then raises CANCELLED.
    def cancel
      @mutex.synchronize do
        @cancelled = true
        @operation&.cancel
        @woken.broadcast
      end
    end

    private

    def attempt_once
      replies = @mutex.synchronize do
        raise cancelled_error if @cancelled

        @attempt += 1
        @operation = @start.call(@deadline)
        @operation.execute
      end
      replies.each do |reply|
        case reply.reply
        when :prompt then @prompt = reply.prompt
        when :finish then @finish = reply.finish
        when :progress then @on_progress&.call(reply.progress)
        when :piece
          @handed_out = true
          yield piece_of(reply.piece)
        end
      end
    end

    def piece_of(message)
      Piece.new(message.text.dup.force_encoding(Encoding::UTF_8), message.ids.to_a, message.logprobs.to_a)
    end

    # Raises the error unless the generation is to be started once more.
    def wait_to_try_again(error)
      delay = @retry_policy.delay(error, @attempt) unless @handed_out || @cancelled
      raise error if delay.nil? || (@deadline && Time.now + delay >= @deadline)

      @on_retry&.call(error, @attempt, delay)
      @mutex.synchronize { @woken.wait(@mutex, delay) unless @cancelled || delay.zero? }
    end

    def cancelled_error
      Error.new(GRPC::Core::StatusCodes::CANCELLED, "cancelled by this client")
    end
  end
end
