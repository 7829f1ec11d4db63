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

// gRPC's own name for it (gRFC A6). Milliseconds; below 0: do not try again.
const pushback = "grpc-retry-pushback-ms"

var field = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): `)

func newError(err error, trailer metadata.MD) *Error {
	told := status.Convert(err)
	e := &Error{Code: told.Code(), Message: told.Message()}
	if match := field.FindStringSubmatch(e.Message); match != nil && e.Code == codes.InvalidArgument {
		e.Field = match[1]
	}
	if values := trailer.Get(pushback); len(values) > 0 {
		milliseconds, err := strconv.ParseInt(values[0], 10, 32)
		if err != nil {
			milliseconds = -1 // as gRFC A6 has it
		}
		delay := time.Duration(milliseconds) * time.Millisecond
		e.RetryDelay = &delay
	}
	return e
}
