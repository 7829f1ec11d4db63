# frozen_string_literal: true

require "grpc"

module Ete
  # What a call ends with other than success. code: its name, such as "INVALID_ARGUMENT"; description: the message without it;
  # field: that of the request that was refused, or nil; retry_delay: the seconds that the server asks to wait, negative when
  # it asks not to try again, or nil.
  class Error < StandardError
    NAMES = GRPC::Core::StatusCodes.constants.to_h { |name| [GRPC::Core::StatusCodes.const_get(name), name.to_s] }.freeze
    FIELD = /\A([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): /.freeze
    # Milliseconds, told by the server.
    RETRY_AFTER = "retry-after-ms"
    # What proxies tell (gRFC A6); below 0, or no number: do not try again.
    PUSHBACK = "grpc-retry-pushback-ms"
    DAY = 24 * 60 * 60 * 1000
    private_constant :NAMES, :FIELD, :RETRY_AFTER, :PUSHBACK, :DAY

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
      new(status.code, status.details.to_s, retry_delay(status.metadata))
    end

    def self.retry_delay(metadata)
      return (milliseconds(metadata[PUSHBACK]) || -1) / 1000.0 if metadata.key?(PUSHBACK)

      value = milliseconds(metadata[RETRY_AFTER])
      value / 1000.0 if value && value >= 0
    end

    # nil: no number, or of more than a day.
    def self.milliseconds(text)
      value = Integer(text, 10, exception: false) if text
      value if value && value <= DAY
    end
    private_class_method :retry_delay, :milliseconds
  end
end
