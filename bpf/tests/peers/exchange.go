// SPDX-License-Identifier: Apache-2.0 OR MIT

// A server and a client of Go's own TLS and HTTP, for exchanges_live.rs. Needs Go 1.19 and nothing
// but its standard library.
//
//	exchange server KEY CERTIFICATE
//	exchange client PROTOCOL CONNECTIONS REQUESTS
package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	address = "10.77.0.1:80"
	delay   = 60 * time.Millisecond
	think   = 5 * time.Millisecond
	page    = 700 // bytes
)

func server(key, certificate string) {
	body := bytes.Repeat([]byte("x"), page)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(delay)
		w.Write(body)
	})
	log.Fatal(http.ListenAndServeTLS(address, certificate, key, handler))
}

// One request; it must come by this version of HTTP.
func get(client *http.Client, major int) {
	response, err := client.Get("https://" + address + "/page")
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || len(body) != page || response.ProtoMajor != major {
		log.Fatal(err, len(body), response.Proto)
	}
	response.Body.Close()
	time.Sleep(think)
}

func client(major, connections, requests int) {
	for n := 0; n < connections; n++ {
		transport := &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: major == 2,
		}
		for r := 0; r < requests; r++ {
			get(&http.Client{Transport: transport, Timeout: 5 * time.Second}, major)
		}
		transport.CloseIdleConnections()
	}
}

func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		log.Fatal(err)
	}
	return n
}

func main() {
	words := os.Args[1:]
	switch {
	case len(words) == 3 && words[0] == "server":
		server(words[1], words[2])
	case len(words) == 4 && words[0] == "client":
		client(number(words[1]), number(words[2]), number(words[3]))
	default:
		log.Fatal("exchange server KEY CERTIFICATE | client HTTP CONNECTIONS REQUESTS")
	}
}
