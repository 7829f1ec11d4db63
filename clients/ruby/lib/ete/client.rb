# frozen_string_literal: true

require "grpc"

module Ete
  # One connection, for any number of threads.
  class Client
    ARGUMENTS = {
      "grpc.max_receive_message_length" => -1,
      "grpc.enable_http_proxy" => 0,
      "grpc.enable_retries" => 0,
      "grpc.initial_reconnect_backoff_ms" => 100,
      "grpc.max_reconnect_backoff_ms" => 2000
    }.freeze
    private_constant :ARGUMENTS

    # address: host:port or unix:PATH. tls: a Tls, or nil: not encrypted. token: sent as "authorization: Bearer TOKEN", in the
    # clear only to this machine. on_retry: called with error, attempt and delay before each new attempt.
    def initialize(address, tls: nil, token: nil, retry_policy: Retry.new, on_retry: nil)
      to = Address.new(address)
      if token && !tls && !to.local?
        raise ArgumentError, "token: #{address} is another machine and the connection is not encrypted; give tls"
      end

      @metadata = token ? { "authorization" => "Bearer #{token}" } : {}
      @retry_policy = retry_policy
      @on_retry = on_retry
      arguments = ARGUMENTS.dup
      arguments["grpc.ssl_target_name_override"] = tls.server_name if tls&.server_name
      credentials = tls ? tls.credentials : :this_channel_is_insecure
      @channel = GRPC::ClientStub.setup_channel(nil, to.target, credentials, arguments)
      @stub = V1::Generation::Stub.new(to.target, credentials, channel_override: @channel)
    end

    # Starts a generation of a V1::GenerateRequest. timeout: seconds until DEADLINE_EXCEEDED, all attempts together.
    # on_progress: called with a V1::PromptProgress until the first piece comes.
    def generate(request, timeout: nil, on_progress: nil)
      request = request.dup.tap { |asking| asking.prompt_progress = true } if on_progress
      start = lambda do |deadline|
        @stub.generate(request, metadata: @metadata, deadline: deadline, return_op: true)
      end
      Stream.new(start, @retry_policy, @on_retry, timeout, on_progress)
    end

    def close
      @channel.close
    end
  end
end
