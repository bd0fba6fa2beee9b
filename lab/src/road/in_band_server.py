# SPDX-License-Identifier: Apache-2.0 OR MIT
# in_band_server.py JSON: an overloaded server as published (papers/netdraino.txt, sections 4.1 and 4.3). UNSAFE: what
# packets say becomes limits. For experiments only.
#
#   device ─► above the rate? dropped; with RCN its sender is told SCN by packets back
#          └─► this process counts packets of each class, and those with an option of a router:
#              from = options / p_a; limit = k · rate · from / total, to that router's agent
#
# A client is a host of a network: an agent of the paper has one address, here it has many.
import json, socket, struct, subprocess, sys, threading, time

o = json.loads(sys.argv[1])
RCN, SCN, OPTION = 2, 4, 158
SAY, WINDOW = 0.5, 1.0
BURST = 0.1  # of a second passes at once
CLIENT = "255.255.0.0"
FIRST = "tcp flags & (fin | syn | rst | ack) == syn"
TO = f"ip daddr {o['server']}"
counts = {"syn": 0, "udp": 0}
lately = {"syn": (0.0, 0, 0), "udp": (0.0, 0, 0)}  # since when, counted then, in the last whole window
entries = {}  # kind and router: sequence, packets of the class before, options
seen = {"info": 0, "strange": 0, "sent": 0, "failed": 0}


def begin():
    notes = f"ip dscp {RCN} update @told {{ ip saddr & {CLIENT} }}"
    tcp, udp = f"{TO} tcp dport {o['port']}", f"{TO} udp dport {o['port']}"
    rates = {
        kind: f"limit rate over {round(rate)}/second burst {max(1, round(BURST * rate))} packets"
        for kind, rate in o["rates"].items()
    }
    text = (
        f"table netdev nd {{\n counter dropped {{ }}\n"
        f" set over {{ type inet_proto; flags dynamic,timeout; timeout 1s; size 8; }}\n"
        f" set told {{ type ipv4_addr; flags dynamic,timeout; timeout 1s; size 64; }}\n"
        f" chain syns {{ update @over {{ ip protocol }}; {notes}; counter name dropped drop; }}\n"
        f" chain datagrams {{ update @over {{ ip protocol }}; {notes}; }}\n"
        f" chain in {{ type filter hook ingress device \"{o['device']}\" priority 0;\n"
        f"  {tcp} {FIRST} {rates['syn']} goto syns\n  {udp} {rates['udp']} goto datagrams\n"
        f"  {TO} ip protocol @over {notes}\n }}\n"
        f" chain out {{ type filter hook egress device \"{o['device']}\" priority 0;\n"
        f"  ip dscp 0 ip daddr & {CLIENT} @told ip dscp set {SCN}\n }}\n}}\n"
    )
    subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


def kind_of(packet, head):
    """The class of a packet: a SYN or a datagram for the service."""
    protocol = packet[9]
    if protocol not in (6, 17) or len(packet) < head + 14:
        return None
    if struct.unpack_from("!H", packet, head + 2)[0] != o["port"]:
        return None
    if protocol == 17:
        return "udp"
    return "syn" if packet[head + 13] & 0x17 == 2 else None


def routers(packet, head):
    """Routers that say that it has passed them: address, share, sequence."""
    at = 20
    while at + 1 < head:
        if packet[at] == 1:
            at += 1
            continue
        length = packet[at + 1]
        if packet[at] == 0 or length < 2 or at + length > head:
            return
        if packet[at] == OPTION:
            for entry in range(at + 4, at + length - 7, 8):
                share, sequence = struct.unpack_from("!HH", packet, entry + 4)
                yield socket.inet_ntoa(packet[entry : entry + 4]), share / 65535, sequence
        at += length


def count(packet, now):
    head = 4 * (packet[0] & 15)
    kind = kind_of(packet, head) if packet[0] >> 4 == 4 and len(packet) >= head else None
    if kind is None:
        return
    counts[kind] += 1
    since, before, _ = lately[kind]
    if now - since >= WINDOW:
        lately[kind] = (now, counts[kind], (counts[kind] - before) / (now - since))
    for router, share, sequence in routers(packet, head):
        # An address in a packet is one of our routers, or nothing.
        if router not in o["routers"] or share <= 0:
            seen["strange"] += 1
            continue
        seen["info"] += 1
        entry = entries.get((kind, router))
        if entry is None or entry[0] != sequence:
            entries[(kind, router)] = [sequence, counts[kind], 0]
            continue
        entry[2] += 1
        judge(kind, router, entry, share)


def judge(kind, router, entry, share):
    """Enough samples of an overload: a limit for this router, and its samples begin anew."""
    rate = o["rates"][kind]
    passed, total = entry[2] / share, counts[kind] - entry[1]
    if passed < o["samples"] or lately[kind][2] <= rate:
        return
    del entries[(kind, router)]
    limit = min(rate, o["k"] * rate * min(1.0, passed / total))
    said = {"kind": kind, "rate": limit, "whole": rate}
    threading.Thread(target=tell, args=(router, said), daemon=True).start()


def tell(router, said):
    try:
        with socket.create_connection((router, o["agents"]), timeout=2) as stream:
            stream.sendall(json.dumps(said).encode() + b"\n")
        seen["sent"] += 1
    except OSError:
        seen["failed"] += 1


def dropped():
    shown = subprocess.run(["nft", "-j", "list", "counters", "table", "netdev", "nd"], capture_output=True)
    found = [one["counter"] for one in json.loads(shown.stdout)["nftables"] if "counter" in one]
    return sum(one["packets"] for one in found)


def main():
    begin()
    # All protocols: as they come, before anything drops them.
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    wire.bind((o["device"], 0))
    wire.settimeout(0.1)
    said = 0.0
    while True:
        now = time.monotonic()
        try:
            packet, (_, protocol, direction, *_) = wire.recvfrom(2048)
            if protocol == 0x0800 and direction == 0:
                count(packet, now)
        except TimeoutError:
            pass
        if now - said >= SAY:
            said = now
            print(json.dumps({**seen, **counts, "dropped": dropped()}), flush=True)


main()
