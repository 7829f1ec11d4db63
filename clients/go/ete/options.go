package ete

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Options of a connection.
type Options struct {
	// TLS nil: not encrypted.
	TLS *tls.Config
	// Token is sent as "authorization: Bearer TOKEN"; in the clear only to this machine.
	Token string
	// Retry zero: DefaultRetry.
	Retry Retry
	// OnRetry is told of each new attempt: what the last one ended with, its number from 1 on, the time until the next.
	OnRetry func(err *Error, attempt int, delay time.Duration)
}

// Retry tries again, while nothing has been handed out, when the server is not available, and whenever it says after which
// delay to come back. Without that the delay doubles from Initial to Maximum, each a fifth more or less.
type Retry struct {
	Attempts         int // at least 1
	Initial, Maximum time.Duration
}

// DefaultRetry is what a zero Retry means.
var DefaultRetry = Retry{Attempts: 5, Initial: 200 * time.Millisecond, Maximum: 5 * time.Second}

func (r Retry) check() error {
	if r.Attempts < 1 || r.Initial < 0 || r.Maximum < r.Initial {
		return fmt.Errorf("retry %+v: at least 1 attempt, and 0 <= Initial <= Maximum", r)
	}
	return nil
}

// delay after attempt 1, 2, ... ended with err; false: err stands.
func (r Retry) delay(err *Error, attempt int) (time.Duration, bool) {
	if attempt >= r.Attempts {
		return 0, false
	}
	if err.RetryDelay != nil {
		return *err.RetryDelay, *err.RetryDelay >= 0
	}
	if err.Code != codes.Unavailable {
		return 0, false
	}
	random := rand.New(rand.NewSource(time.Now().UnixNano()))
	delay := r.Initial
	for i := 1; i < attempt && delay < r.Maximum; i++ {
		delay *= 2
	}
	if delay > r.Maximum {
		delay = r.Maximum
	}
	return time.Duration(float64(delay) * (0.8 + 0.4*random.Float64())), true
}

// NewTLS makes a configuration from PEM: root certificates (nil: the system's), the client's own certificate and key (nil:
// none), and the name in the server's certificate (empty: that of the address).
func NewTLS(roots, certificate, key []byte, serverName string) (*tls.Config, error) {
	config := &tls.Config{ServerName: serverName, MinVersion: tls.VersionTLS12}
	if roots != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(roots) {
			return nil, errors.New("tls: the root certificates hold no PEM certificate")
		}
	}
	if (certificate == nil) != (key == nil) {
		return nil, errors.New("tls: certificate and key belong together")
	}
	if certificate != nil {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("tls: certificate and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// What net.Dial takes, of host:port or unix:PATH.
type address struct{ network, endpoint string }

func parseAddress(text string) (address, error) {
	if path := strings.TrimPrefix(text, "unix:"); path != text {
		if path == "" {
			return address{}, fmt.Errorf("address %q: unix: and the path of a socket are expected", text)
		}
		return address{"unix", path}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || host == "" {
		return address{}, fmt.Errorf("address %q: host:port or unix:PATH is expected", text)
	}
	return address{"tcp", text}, nil
}

func (a address) isLocal() bool {
	if a.network == "unix" {
		return true
	}
	host, _, _ := net.SplitHostPort(a.endpoint)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
