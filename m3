bpf/tests: write services and helpers once

`Service::new` is a service without classes and rules; fourteen literals
spelled its seven fields out. Tests that enter a namespace, show links or
filters, or start a TLS server did so by copies of one another: they share
`inside`, `says`, `links`, `filters`, `certificate` and `Server`.

Verified by those tests.
