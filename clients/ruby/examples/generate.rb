#!/usr/bin/env ruby
# frozen_string_literal: true

# Streams the continuation of a prompt to stdout; everything else is said on stderr.

require "ete"
require "optparse"

def parse
  given = { stop: [], attempts: 5, linger: 0 }
  parser = OptionParser.new("generate.rb [OPTIONS] ADDRESS PROMPT\nADDRESS is host:port or unix:PATH")
  parser.on("--max-tokens N", Integer) { |n| given[:max_tokens] = n }
  parser.on("--seed N", Integer) { |n| given[:seed] = n }
  parser.on("--temperature X", Float) { |x| given[:temperature] = x }
  parser.on("--top-p X", Float) { |x| given[:top_p] = x }
  parser.on("--stop TEXT", "may be repeated") { |text| given[:stop] << text }
  parser.on("--logprobs N", Integer, "a line for each token, with N others") { |n| given[:logprobs] = n }
  parser.on("--progress", "tell how much of the prompt is processed") { given[:progress] = true }
  parser.on("--deadline SECONDS", Float) { |seconds| given[:deadline] = seconds }
  parser.on("--cancel-after N", Integer, "cancel after N pieces") { |n| given[:cancel_after] = n }
  parser.on("--attempts N", Integer, "1: do not try again [5]") { |n| given[:attempts] = n }
  parser.on("--tls", "with the system's root certificates") { given[:tls] = {} }
  parser.on("--root-cert FILE", "TLS with these root certificates") { |file| given[:root_certificates] = File.read(file) }
  parser.on("--cert FILE", "the client's own certificate") { |file| given[:certificate] = File.read(file) }
  parser.on("--key FILE", "and its key") { |file| given[:private_key] = File.read(file) }
  parser.on("--server-name NAME", "of the server's certificate [that of the address]") { |name| given[:server_name] = name }
  parser.on("--token-file FILE", "holds the bearer token") { |file| given[:token] = File.read(file).strip }
  parser.on("--linger SECONDS", Float, "stay connected this long afterwards") { |seconds| given[:linger] = seconds }
  given[:address], given[:prompt], *rest = parser.parse(ARGV)
  raise OptionParser::MissingArgument, "ADDRESS PROMPT\n#{parser}" if given[:prompt].nil? || !rest.empty?

  given
end

def request_of(given)
  request = Ete::V1::GenerateRequest.new(
    text: given[:prompt],
    sampling: Ete::V1::Sampling.new(**given.slice(:seed, :temperature, :top_p)),
    stopping: Ete::V1::Stopping.new(stop: given[:stop].map(&:b), **given.slice(:max_tokens))
  )
  request.logprobs = Ete::V1::Logprobs.new(top: given[:logprobs]) if given[:logprobs]
  request
end

def connect(given)
  pem = given.slice(:root_certificates, :certificate, :private_key, :server_name)
  Ete::Client.new(
    given[:address],
    tls: given[:tls] || !pem.empty? ? Ete::Tls.new(**pem) : nil,
    token: given[:token],
    retry_policy: Ete::Retry.new(attempts: given[:attempts]),
    on_retry: ->(error, attempt, delay) { warn format("retry attempt=%d delay=%.3f %s", attempt, delay, error) }
  )
end

def show(piece)
  print piece.text
  $stdout.flush
  piece.logprobs.each do |token|
    others = token.top_ids.zip(token.top_logprobs).map { |id, value| format(" %d:%.4f", id, value) }
    warn format("logprob %d %.4f", token.id, token.logprob) + others.join
  end
end

def generate(client, given)
  tell = ->(progress) { warn "progress #{progress.processed_tokens} of #{progress.prompt_tokens}" } if given[:progress]
  stream = client.generate(request_of(given), timeout: given[:deadline], on_progress: tell)
  pieces = 0
  stream.each do |piece|
    show(piece)
    pieces += 1
    stream.cancel if pieces == given[:cancel_after]
  end
  finish = stream.finish
  warn "finish reason=#{finish.reason.to_s.delete_prefix('FINISH_REASON_')} pieces=#{pieces} " \
       "prompt_tokens=#{finish.prompt_tokens} generated_tokens=#{finish.generated_tokens}"
  0
rescue Ete::Error => e
  warn "error code=#{e.code} field=#{e.field || '-'} #{e.description}"
  1
end

begin
  given = parse
  client = connect(given)
  code = generate(client, given)
  sleep given[:linger]
  client.close
  exit code
rescue OptionParser::ParseError, ArgumentError, SystemCallError => e
  warn "generate: #{e.message}"
  exit 2
end
