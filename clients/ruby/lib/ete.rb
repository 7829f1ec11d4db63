# frozen_string_literal: true

# Text generation by an `ete serve`: Ete::Client.
require "ete/v1/generation_pb"
require "ete/v1/generation_services_pb"
require "ete/error"
require "ete/options"
require "ete/stream"
require "ete/client"
