// SPDX-License-Identifier: Apache-2.0 OR MIT

// A reverse proxy with one policy of failsafe-go in front of its server, as the library's
// documentation of HTTP servers sets it up: today's rival among libraries. Policies keep their
// documented defaults. What they refuse is counted; a connection to the socket `admin` is told.
package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"
)

// Executions beyond these multiples of the limit wait in vain: the factors that the library itself
// takes where it queues by default.
const (
	queueFrom = 2
	queueMost = 3
)

type response = *http.Response

// none leaves everything to the server behind.
func none(time.Duration) []failsafe.Policy[response] {
	return nil
}

// limiter bounds concurrency. Its documentation says that a limit without a queue is too strict in
// some cases and refuses what need not be refused.
func limiter(wait time.Duration) []failsafe.Policy[response] {
	policy := adaptivelimiter.NewBuilder[response]().
		WithQueueing(queueFrom, queueMost).
		WithMaxWaitTime(wait).
		Build()
	return []failsafe.Policy[response]{policy}
}

// throttler refuses by the rate of failures. A response that takes too long is one.
func throttler(wait time.Duration) []failsafe.Policy[response] {
	policy := adaptivethrottler.NewBuilder[response]().
		HandleErrors(timeout.ErrExceeded).
		Build()
	return []failsafe.Policy[response]{policy, timeout.New[response](wait)}
}

// counted remembers whether a request was refused: by the status that failsafehttp gives it, which
// the servers behind never give.
type counted struct {
	http.ResponseWriter
	refused *atomic.Uint64
}

func (c counted) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		c.refused.Add(1)
	}
	c.ResponseWriter.WriteHeader(status)
}

func counting(inner http.Handler, refused *atomic.Uint64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(counted{w, refused}, r)
	})
}

func tell(admin string, refused *atomic.Uint64) error {
	listener, err := net.Listen("unix", admin)
	if err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				fmt.Fprintln(connection, refused.Load())
				connection.Close()
			}
		}
	}()
	return nil
}

func guarded(inner http.Handler, policies []failsafe.Policy[response]) http.Handler {
	if len(policies) == 0 {
		return inner
	}
	return failsafehttp.NewHandler(inner, policies...)
}

func main() {
	listen := flag.String("listen", "", "where clients come")
	behind := flag.String("behind", "", "the server, host:port")
	admin := flag.String("admin", "", "a socket that tells how many were refused")
	name := flag.String("policy", "limiter", "none, limiter or throttler")
	wait := flag.Duration("wait", 0, "the longest wait for a place, or for a response")
	certificate := flag.String("certificate", "", "a file in PEM; with it clients speak TLS 1.3")
	key := flag.String("key", "", "its key, a file in PEM")
	flag.Parse()
	policies := map[string]func(time.Duration) []failsafe.Policy[response]{
		"none": none, "limiter": limiter, "throttler": throttler,
	}
	build, found := policies[*name]
	if !found {
		log.Fatalf("there is no policy %q", *name)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: *behind})
	// A line for each client that has gone would be the most expensive part of it.
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	refused := new(atomic.Uint64)
	if err := tell(*admin, refused); err != nil {
		log.Fatal(err)
	}
	handler := counting(guarded(proxy, build(*wait)), refused)
	server := &http.Server{Addr: *listen, Handler: handler, ErrorLog: proxy.ErrorLog}
	if *certificate == "" {
		log.Fatal(server.ListenAndServe())
	}
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}
