# frozen_string_literal: true

require "grpc"

module Ete
  # What a call ends with other than success. code: its name, such as "INVALID_ARGUMENT"; description: the message without it;
  # field: that of the request that was refused, or nil; retry_delay: the seconds that the server asks to wait, negative when
  # it asks not to try again, or nil.
  class Error < StandardError
    NAMES = GRPC::Core::StatusCodes.constants.to_h { |name| [GRPC::Core::StatusCodes.const_get(name), name.to_s] }.freeze
    FIELD = /\A([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): /.freeze
    # gRPC's own name for it (gRFC A6). Milliseconds; below 0: do not try again.
    PUSHBACK = "grpc-retry-pushback-ms"
    private_constant :NAMES, :FIELD, :PUSHBACK

    attr_reader :code, :description, :field, :retry_delay

    def initialize(code, description, retry_delay = nil)
      @code = NAMES.fetch(code, code.to_s)
      super("#{@code}: #{description}")
      @description = description
      @field = description[FIELD, 1] if code == GRPC::Core::StatusCodes::INVALID_ARGUMENT
      @retry_delay = retry_delay
    end

    # Of a GRPC::BadStatus.
    def self.from(status)
      pushback = status.metadata[PUSHBACK]
      delay = (Integer(pushback, 10, exception: false) || -1000) / 1000.0 if pushback # as gRFC A6 has it
      new(status.code, status.details.to_s, delay)
    end
  end
end
