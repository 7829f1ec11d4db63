# frozen_string_literal: true

require "erb"
require "ipaddr"

module Ete
  # PEM. Without root certificates those of the system that gRPC knows; certificate and key for servers that ask who calls;
  # server_name when the server's certificate has another name than the address.
  class Tls
    attr_reader :root_certificates, :certificate, :private_key, :server_name

    def initialize(root_certificates: nil, certificate: nil, private_key: nil, server_name: nil)
      raise ArgumentError, "tls: certificate and private_key belong together" if certificate.nil? != private_key.nil?

      @root_certificates = root_certificates
      @certificate = certificate
      @private_key = private_key
      @server_name = server_name
    end

    def credentials
      GRPC::Core::ChannelCredentials.new(root_certificates, private_key, certificate)
    end
  end

  # Tries again, while nothing has been handed out, when the server is not available, and whenever it says after which delay
  # to come back. Without that the delay doubles from initial to maximum seconds, each a fifth more or less.
  class Retry
    def initialize(attempts: 5, initial: 0.2, maximum: 5.0)
      unless attempts >= 1 && initial >= 0 && maximum >= initial
        raise ArgumentError, "retry: at least 1 attempt, and 0 <= initial <= maximum"
      end

      @attempts = attempts
      @initial = initial
      @maximum = maximum
    end

    # Seconds to wait after attempt 1, 2, ... ended with error; nil: it stands.
    def delay(error, attempt)
      return nil if attempt >= @attempts
      return error.retry_delay.negative? ? nil : error.retry_delay if error.retry_delay
      return nil unless error.code == "UNAVAILABLE"

      # Past 2^30 the maximum has long been reached.
      [@maximum, @initial * (2**[attempt - 1, 30].min)].min * rand(0.8..1.2)
    end
  end

  # host:port or unix:PATH.
  class Address
    def initialize(text)
      @text = text
      @path = text.delete_prefix("unix:") if text.start_with?("unix:")
      raise ArgumentError, "address #{text.inspect}: unix: and the path of a socket are expected" if @path&.empty?
      return if @path

      @host, port = text.match(%r{\A([^/]+):(\d{1,5})\z})&.captures
      return if @host && port.to_i <= 65_535

      raise ArgumentError, "address #{text.inspect}: host:port or unix:PATH is expected"
    end

    # gRPC's name for it.
    def target
      @path ? "unix:#{@path.split('/', -1).map { |part| ERB::Util.url_encode(part) }.join('/')}" : @text
    end

    def local?
      return true if @path || @host == "localhost"

      IPAddr.new(@host).loopback?
    rescue IPAddr::InvalidAddressError
      false
    end
  end
end
