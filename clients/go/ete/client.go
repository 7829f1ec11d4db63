// Package ete streams text from an `ete serve`.
package ete

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"edgetransformerengine/etev1"
)

// Client is one connection, for any number of goroutines.
type Client struct {
	connection *grpc.ClientConn
	stub       etev1.GenerationClient
	options    Options
}

// Dial prepares a connection to host:port or unix:PATH; it is made by the first call.
func Dial(to string, options Options) (*Client, error) {
	where, err := parseAddress(to)
	if err != nil {
		return nil, err
	}
	if options.Retry == (Retry{}) {
		options.Retry = DefaultRetry
	}
	if err := options.Retry.check(); err != nil {
		return nil, err
	}
	if options.Token != "" && options.TLS == nil && !where.isLocal() {
		return nil, fmt.Errorf("token: %s is another machine and the connection is not encrypted; give TLS", to)
	}
	connection, err := grpc.Dial("passthrough:///"+where.endpoint, dialOptions(where, options.TLS)...)
	if err != nil {
		return nil, err
	}
	return &Client{connection, etev1.NewGenerationClient(connection), options}, nil
}

// Close ends what still runs.
func (c *Client) Close() error { return c.connection.Close() }

// Generate starts a generation. Cancelling ctx ends it on the server too; its deadline is that of all attempts together.
func (c *Client) Generate(ctx context.Context, request *etev1.GenerateRequest) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	if c.options.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.options.Token)
	}
	return &Stream{client: c, request: request, ctx: ctx, cancel: cancel}
}

// Stream holds the pieces of one generation, for one goroutine.
type Stream struct {
	// OnProgress, when it is set before the first Next, is told how much of the prompt is processed, until a piece comes.
	OnProgress func(progress *etev1.PromptProgress)
	// Prompt is what the server made of the prompt, from the first piece on.
	Prompt *etev1.PromptInfo
	// Finish is why the generation ended, once Next has returned io.EOF.
	Finish *etev1.Finish

	client    *Client
	request   *etev1.GenerateRequest
	ctx       context.Context
	cancel    context.CancelFunc
	call      etev1.Generation_GenerateClient
	attempt   int
	handedOut bool
}

// Next waits for a piece. io.EOF: the text is complete. Otherwise an *Error; the pieces before it stand.
func (s *Stream) Next() (*etev1.Piece, error) {
	for {
		reply, err := s.receive()
		if err != nil {
			if err := s.tryAgain(err); err != nil {
				s.cancel()
				return nil, err
			}
			continue
		}
		switch {
		case reply.GetPrompt() != nil:
			s.Prompt = reply.GetPrompt()
		case reply.GetFinish() != nil:
			s.Finish = reply.GetFinish()
		case reply.GetProgress() != nil && s.OnProgress != nil:
			s.OnProgress(reply.GetProgress())
		case reply.GetPiece() != nil:
			s.handedOut = true
			return reply.GetPiece(), nil
		}
	}
}

// Close cancels the generation if it still runs.
func (s *Stream) Close() { s.cancel() }

func (s *Stream) receive() (*etev1.GenerateReply, error) {
	if s.call == nil {
		s.attempt++
		request := s.request
		if s.OnProgress != nil {
			request = proto.Clone(request).(*etev1.GenerateRequest)
			request.PromptProgress = proto.Bool(true)
		}
		call, err := s.client.stub.Generate(s.ctx, request)
		if err != nil {
			return nil, err
		}
		s.call = call
	}
	return s.call.Recv()
}

// Returns what stands, or nil when the generation is to be started once more.
func (s *Stream) tryAgain(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	var trailer metadata.MD
	if s.call != nil {
		trailer = s.call.Trailer()
	}
	told := newError(err, trailer)
	if s.handedOut {
		return told
	}
	delay, again := s.client.options.Retry.delay(told, s.attempt)
	if deadline, ok := s.ctx.Deadline(); !again || (ok && time.Now().Add(delay).After(deadline)) {
		return told
	}
	if s.client.options.OnRetry != nil {
		s.client.options.OnRetry(told, s.attempt, delay)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
	// When ctx has ended the next call says so.
	s.call = nil
	s.client.connection.ResetConnectBackoff()
	return nil
}

func dialOptions(to address, config *tls.Config) []grpc.DialOption {
	// A dialer of one's own: Unix sockets too, and no proxy that the environment names.
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, to.network, to.endpoint)
	}
	quick := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}
	options := []grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}
	if config == nil {
		options = append(options, grpc.WithInsecure())
		if to.network == "unix" {
			options = append(options, grpc.WithAuthority("localhost"))
		}
		return options
	}
	if to.network == "unix" && config.ServerName == "" {
		config = config.Clone()
		config.ServerName = "localhost"
	}
	return append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
}
