bpf: give dataplane and test plane one state

`Dataplane` and `TestPlane` repeated fourteen methods each that only asked
`Core`. `Core` is public now and documented, and both dereference to it:
what is written and read is the same with hooks in place and without.
`set_limits` has one signature, services and request buckets.

Verified by the tests of the crate that load programs: 48 unit tests,
hooks, reload, request_reload, request_hooks, attach, takeover, sockets,
time_wait, tls_live.
