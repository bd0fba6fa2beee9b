# SPDX-License-Identifier: Apache-2.0 OR MIT
# relay.py SEED [NAME NAME DELAY_US LOSS QUEUE]...: a frame that comes in by one interface of a pair goes out by the
# other, after a delay, unless it is lost or finds the queue full. Each second a line of JSON says what was done so far;
# how late frames are counts from the kernel's time of arrival.
import gc, json, math, random, select, socket, struct, sys, time
from collections import deque

ETH_P_ALL, SOL_PACKET, IGNORE_OUTGOING, TIMESTAMPNS, STATISTICS = 3, 263, 23, 35, 6
SO_RCVBUFFORCE = 33
FRAME_BYTES, BATCH, STEPS = 65536, 64, 8
passed = lost = overflowed = 0
late = [0] * 160


def end(name):
    this = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    this.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    this.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
    this.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
    # From here on it takes frames.
    this.bind((name, ETH_P_ALL))
    this.setblocking(False)
    return this


def quantile(share):
    left = share * sum(late)
    for step, count in enumerate(late):
        left -= count
        if left <= 0:
            return (math.exp((step + 1) / STEPS) - 1) / 1e6
    return 0.0


class Way:
    def __init__(self, source, sink, delay, loss, queue):
        self.source, self.sink, self.delay = source, sink, delay
        self.loss, self.queue, self.waiting = loss, queue, deque()

    def take(self):
        global lost, overflowed
        for _ in range(BATCH):
            try:
                frame, told, _, _ = self.source.recvmsg(FRAME_BYTES, 64)
            except BlockingIOError:
                return
            if len(self.waiting) >= self.queue:
                overflowed += 1
                continue
            if self.loss and random.random() < self.loss:
                lost += 1
                continue
            seconds, nanos = struct.unpack("qq", told[0][2][:16]) if told else (time.time(), 0)
            self.waiting.append((seconds + nanos / 1e9 + self.delay, frame))

    def give(self):
        global passed, overflowed
        while self.waiting and self.waiting[0][0] <= time.time():
            due, frame = self.waiting.popleft()
            try:
                self.sink.send(frame)
            except OSError:
                # A full queue of the device loses a frame, as a wire does.
                overflowed += 1
                continue
            passed += 1
            step = int(math.log((time.time() - due) * 1e6 + 1) * STEPS)
            late[min(step, len(late) - 1)] += 1


gc.disable()
random.seed(int(sys.argv[1]))
ways = []
for at in range(2, len(sys.argv), 5):
    one, other, delay, loss, queue = sys.argv[at : at + 5]
    ends = end(one), end(other)
    for source, sink in (ends, ends[::-1]):
        ways.append(Way(source, sink, int(delay) / 1e6, float(loss), int(queue)))
sources = {way.source: way for way in ways}
print("ready", flush=True)
say = time.time() + 1
while True:
    for way in ways:
        way.give()
    due = min((way.waiting[0][0] for way in ways if way.waiting), default=say)
    left = min(due, say) - time.time()
    if left > 0:
        for source in select.select(sources, [], [], left)[0]:
            sources[source].take()
    else:
        for way in ways:
            way.take()
    if time.time() >= say:
        say += 1
        for source in sources:
            # Frames for which the socket had no room since this was asked last.
            overflowed += struct.unpack("II", source.getsockopt(SOL_PACKET, STATISTICS, 8))[1]
        seen = {"passed": passed, "lost": lost, "overflowed": overflowed}
        seen.update(late_p50=quantile(0.5), late_p99=quantile(0.99), cpu=time.process_time())
        print(json.dumps(seen), flush=True)
