// Command generate streams the continuation of a prompt to stdout; everything else is said on stderr.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"edgetransformerengine/ete"
	"edgetransformerengine/etev1"
)

type stops []string

func (s *stops) String() string                { return strings.Join(*s, ",") }
func (s *stops) Set(text string) error         { *s = append(*s, text); return nil }
func say(format string, values ...interface{}) { fmt.Fprintf(os.Stderr, format+"\n", values...) }

type arguments struct {
	address, prompt                            string
	maxTokens, logprobs, cancelAfter, attempts int
	seed                                       uint64
	temperature, topP, deadline, linger        float64
	stop                                       stops
	tls, progress                              bool
	rootCert, cert, key, serverName, tokenFile string
	given                                      map[string]bool
}

func parse() arguments {
	var a arguments
	flag.Usage = func() {
		say("generate [flags] ADDRESS PROMPT\nADDRESS is host:port or unix:PATH")
		flag.PrintDefaults()
	}
	flag.IntVar(&a.maxTokens, "max-tokens", 0, "")
	flag.Uint64Var(&a.seed, "seed", 0, "")
	flag.Float64Var(&a.temperature, "temperature", 1, "")
	flag.Float64Var(&a.topP, "top-p", 1, "")
	flag.Var(&a.stop, "stop", "may be repeated")
	flag.IntVar(&a.logprobs, "logprobs", 0, "a line for each token, with so many others")
	flag.BoolVar(&a.progress, "progress", false, "tell how much of the prompt is processed")
	flag.Float64Var(&a.deadline, "deadline", 0, "seconds")
	flag.IntVar(&a.cancelAfter, "cancel-after", 0, "cancel after so many pieces")
	flag.IntVar(&a.attempts, "attempts", 5, "1: do not try again")
	flag.BoolVar(&a.tls, "tls", false, "with the system's root certificates")
	flag.StringVar(&a.rootCert, "root-cert", "", "TLS with the root certificates of this file")
	flag.StringVar(&a.cert, "cert", "", "file of the client's own certificate")
	flag.StringVar(&a.key, "key", "", "and of its key")
	flag.StringVar(&a.serverName, "server-name", "", "of the server's certificate (default: that of the address)")
	flag.StringVar(&a.tokenFile, "token-file", "", "holds the bearer token")
	flag.Float64Var(&a.linger, "linger", 0, "stay connected so many seconds afterwards")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	a.address, a.prompt = flag.Arg(0), flag.Arg(1)
	a.given = map[string]bool{}
	flag.Visit(func(f *flag.Flag) { a.given[f.Name] = true })
	return a
}

func (a arguments) request() *etev1.GenerateRequest {
	request := &etev1.GenerateRequest{
		Prompt:   &etev1.GenerateRequest_Text{Text: a.prompt},
		Sampling: &etev1.Sampling{},
		Stopping: &etev1.Stopping{},
	}
	if a.given["seed"] {
		request.Sampling.Seed = &a.seed
	}
	if a.given["temperature"] {
		value := float32(a.temperature)
		request.Sampling.Temperature = &value
	}
	if a.given["top-p"] {
		value := float32(a.topP)
		request.Sampling.TopP = &value
	}
	if a.given["max-tokens"] {
		value := int32(a.maxTokens)
		request.Stopping.MaxTokens = &value
	}
	for _, text := range a.stop {
		request.Stopping.Stop = append(request.Stopping.Stop, []byte(text))
	}
	if a.given["logprobs"] {
		value := int32(a.logprobs)
		request.Logprobs = &etev1.Logprobs{Top: &value}
	}
	return request
}

// The file's bytes; nil without a path.
func read(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return os.ReadFile(path)
}

func (a arguments) options() (options ete.Options, err error) {
	options.Retry = ete.DefaultRetry
	options.Retry.Attempts = a.attempts
	options.OnRetry = func(err *ete.Error, attempt int, delay time.Duration) {
		say("retry attempt=%d delay=%.3f %v", attempt, delay.Seconds(), err)
	}
	token, err := read(a.tokenFile)
	if err != nil {
		return options, err
	}
	options.Token = strings.TrimSpace(string(token))
	if !a.tls && a.rootCert == "" && a.cert == "" && a.key == "" && a.serverName == "" {
		return options, nil
	}
	var pem [3][]byte
	for i, path := range []string{a.rootCert, a.cert, a.key} {
		if pem[i], err = read(path); err != nil {
			return options, err
		}
	}
	options.TLS, err = ete.NewTLS(pem[0], pem[1], pem[2], a.serverName)
	return options, err
}

func show(piece *etev1.Piece) {
	os.Stdout.Write(piece.Text)
	for _, token := range piece.Logprobs {
		line := fmt.Sprintf("logprob %d %.4f", token.Id, token.Logprob)
		for i, id := range token.TopIds {
			line += fmt.Sprintf(" %d:%.4f", id, token.TopLogprobs[i])
		}
		say("%s", line)
	}
}

func generate(a arguments, client *ete.Client) error {
	ctx, cancel := context.WithCancel(context.Background())
	if a.given["deadline"] {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(a.deadline*float64(time.Second)))
	}
	defer cancel()
	stream := client.Generate(ctx, a.request())
	defer stream.Close()
	if a.progress {
		stream.OnProgress = func(progress *etev1.PromptProgress) {
			say("progress %d of %d", progress.ProcessedTokens, progress.PromptTokens)
		}
	}
	for pieces := 0; ; {
		piece, err := stream.Next()
		if err == io.EOF {
			say("finish reason=%s pieces=%d prompt_tokens=%d generated_tokens=%d",
				strings.TrimPrefix(stream.Finish.Reason.String(), "FINISH_REASON_"), pieces,
				stream.Finish.PromptTokens, stream.Finish.GeneratedTokens)
			return nil
		}
		if err != nil {
			return err
		}
		show(piece)
		pieces++
		if pieces == a.cancelAfter {
			cancel()
		}
	}
}

// The exit code.
func report(err error) int {
	var told *ete.Error
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &told):
		say("generate: %v", err)
		return 2
	case told.Field == "":
		told.Field = "-"
	}
	say("error code=%s field=%s %s", ete.CodeName(told.Code), told.Field, told.Message)
	return 1
}

func main() {
	a := parse()
	options, err := a.options()
	if err != nil {
		os.Exit(report(err))
	}
	client, err := ete.Dial(a.address, options)
	if err != nil {
		os.Exit(report(err))
	}
	defer client.Close()
	code := report(generate(a, client))
	time.Sleep(time.Duration(a.linger * float64(time.Second)))
	os.Exit(code)
}
