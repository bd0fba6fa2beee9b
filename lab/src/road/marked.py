# SPDX-License-Identifier: Apache-2.0 OR MIT
# marked.py FROM TO PORT RATE OPTION DSCP…: datagrams in turn with each of these marks, and with an IPv4 option in
# hexadecimal digits (`-`: none). Says once a second how many it has sent.
import json, socket, sys, time

source, to, port, rate, option = sys.argv[1:6]
senders = []
for dscp in map(int, sys.argv[6:]):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((source, 0))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    if option != "-":
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes.fromhex(option))
    senders.append(sender)
tried, sent, said = 0, 0, time.monotonic()
while True:
    try:
        senders[tried % len(senders)].sendto(b"marked", (to, int(port)))
        sent += 1
    except OSError:
        # A port that is closed, or a full queue.
        pass
    tried += 1
    if time.monotonic() - said >= 1:
        said += 1
        print(json.dumps({"sent": sent, "allowed": 0, "taken": 0, "answers": 0}), flush=True)
    time.sleep(1 / float(rate))
