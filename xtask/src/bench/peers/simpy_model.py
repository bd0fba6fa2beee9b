# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The simulator's speed model on SimPy, as one would write it there: one process for each client.
A worker of `cargo xtask bench` (the protocol: xtask/src/bench/worker.rs).

Poisson 100/s; a token bucket of 80/s and depth 80; a refused SYN comes again after 3, 6, 12, 24
and 48 s, then its client gives up.
"""

import random
import sys
import time

import simpy

RATE, TOKENS, DEPTH, SECONDS = 100.0, 80.0, 80.0, 1000.0
GAPS = (3.0, 6.0, 12.0, 24.0, 48.0)


class Model:
    def __init__(self, seed):
        self.env = simpy.Environment()
        self.random = random.Random(seed)
        self.tokens, self.then = DEPTH, 0.0
        self.syns = self.requests = self.admitted = self.abandoned = 0
        self.env.process(self.arrivals())

    def arrivals(self):
        while True:
            yield self.env.timeout(self.random.expovariate(RATE))
            if self.env.now >= SECONDS:
                return
            self.requests += 1
            self.env.process(self.client())

    def client(self):
        for gap in GAPS:
            if self.admit():
                return
            yield self.env.timeout(gap)
        if not self.admit():
            self.abandoned += 1

    def admit(self):
        self.syns += 1
        now = self.env.now
        self.tokens = min(DEPTH, self.tokens + (now - self.then) * TOKENS)
        self.then = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        self.admitted += 1
        return True


def measure(seed):
    model = Model(seed)
    begun = time.thread_time_ns()
    model.env.run()
    ns = time.thread_time_ns() - begun
    return ns / model.syns


def main():
    about = "the same model on SimPy, per SYN"
    print('{"subjects": [{"name": "simpy", "about": "%s"}]}' % about, flush=True)
    for seed, _ in enumerate(sys.stdin):
        print('{"ns": %f}' % measure(seed), flush=True)


if __name__ == "__main__":
    main()
