package ete

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Error is what a call ends with other than success.
type Error struct {
	Code    codes.Code
	Message string
	// Field of the request that was refused; empty: none.
	Field string
	// RetryDelay is what the server asks to wait, below 0 when it asks not to try again; nil: it does not say.
	RetryDelay *time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", CodeName(e.Code), e.Message) }

// GRPCStatus lets status.Code and status.FromError see through an Error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

var names = map[codes.Code]string{
	codes.OK: "OK", codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
	codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}

// CodeName is the code as the protocol and other languages write it, such as INVALID_ARGUMENT.
func CodeName(code codes.Code) string {
	if name, ok := names[code]; ok {
		return name
	}
	return strconv.Itoa(int(code))
}

const (
	// Milliseconds, told by the server.
	retryAfter = "retry-after-ms"
	// What proxies tell (gRFC A6); below 0, or no number: do not try again.
	pushback = "grpc-retry-pushback-ms"
	day      = 24 * time.Hour
)

var field = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): `)

func newError(err error, trailer metadata.MD) *Error {
	told := status.Convert(err)
	e := &Error{Code: told.Code(), Message: told.Message()}
	if match := field.FindStringSubmatch(e.Message); match != nil && e.Code == codes.InvalidArgument {
		e.Field = match[1]
	}
	e.RetryDelay = retryDelay(trailer)
	return e
}

func retryDelay(trailer metadata.MD) *time.Duration {
	if values := trailer.Get(pushback); len(values) > 0 {
		delay, ok := milliseconds(values[0])
		if !ok {
			delay = -1
		}
		return &delay
	}
	if values := trailer.Get(retryAfter); len(values) > 0 {
		if delay, ok := milliseconds(values[0]); ok && delay >= 0 {
			return &delay
		}
	}
	return nil
}

// false: no number, or of more than a day.
func milliseconds(text string) (time.Duration, bool) {
	number, err := strconv.ParseInt(text, 10, 32)
	delay := time.Duration(number) * time.Millisecond
	return delay, err == nil && delay <= day
}
