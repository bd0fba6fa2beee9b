# SPDX-License-Identifier: Apache-2.0 OR MIT
# in_band_router.py JSON: a router as published (papers/netdraino.txt, sections 4.1, 4.2 and 4.4). UNSAFE: whoever can
# send marks and options makes limits here. For experiments only.
#
#   inward ─► limits ─┬──────────────────────────► link: RCN on random packets while its queue is long
#                     └─ p_a, to CServs: nd0 ═ nd1 ─ this process adds option 158 ─► nd0 ─► link
#   link ─► SCN? its sender is in CServs
#
# Marks, limits and the choice of packets are rules of nftables. Options are added here, packet by packet.
import json, socket, struct, subprocess, sys, threading, time

o = json.loads(sys.argv[1])
RCN, SCN, OPTION = 2, 4, 158
POLL, SAY, WEIGHT = 0.05, 0.5, 0.1
LIGHT = 1 / 3  # of the threshold: below it a router is lightly loaded, if its limits drop nothing either
BURST = 0.1  # of a second passes at once
PAUSE = 1.0  # without packets for CServs; then a new sequence number begins
RTM_GETQDISC, DUMP, KIND, STATS, DONE = 38, 0x301, 1, 3, 3
FIRST = "tcp flags & (fin | syn | rst | ack) == syn"
MATCH = {
    "syn": f"ip daddr {o['server']} tcp dport {o['port']} {FIRST}",
    "udp": f"ip daddr {o['server']} udp dport {o['port']}",
}
lock = threading.Lock()
limits = {}  # kind: rate, whole, when it came
seen = {"options": 0, "option_bytes": 0, "no_room": 0, "taken": 0, "refused": 0}


def nft(text):
    subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


def begin():
    subprocess.run(
        ["ip", "-batch", "-"],
        input=b"link add nd0 type veth peer name nd1\nlink set nd0 up\nlink set nd1 up\n",
        check=True,
    )
    # What leaves for this process has its checksum, and is whole.
    subprocess.run(["ethtool", "-K", "nd0", "tx", "off"], stdout=subprocess.DEVNULL, check=True)
    inward = ", ".join(o["inward"])
    chains = "".join(f" chain {name} {{ }}\n" for name in ("limits", "options", "marks", "heard"))
    nft(
        f"table netdev nd {{\n"
        f" set cservs {{ type ipv4_addr; flags dynamic,timeout; timeout 10s; size 8; }}\n"
        f" counter marked {{ }}\n counter dropped_syn {{ }}\n counter dropped_udp {{ }}\n{chains}"
        f" chain in {{ type filter hook ingress devices = {{ {inward} }} priority 0; jump limits; jump options; }}\n"
        f" chain back {{ type filter hook ingress device \"{o['link']}\" priority 0; jump heard; }}\n"
        f" chain out {{ type filter hook egress device \"{o['link']}\" priority 0; jump marks; }}\n}}\n"
    )


def rules(congested, rates):
    lines = [f"flush chain netdev nd {name}" for name in ("limits", "options", "marks", "heard")]
    for kind, rate in rates.items():
        most = max(1, round(rate))
        lines.append(
            f"add rule netdev nd limits {MATCH[kind]} limit rate over {most}/second burst {max(1, round(BURST * most))} packets "
            f"counter name dropped_{kind} drop"
        )
    if congested:
        share, every = round(1000 * o["append"]), round(1 / o["mark"])
        lines += [
            f"add rule netdev nd heard ip dscp {SCN} update @cservs {{ ip saddr }}",
            f"add rule netdev nd options ip daddr @cservs numgen random mod 1000 < {share} fwd to \"nd0\"",
            f"add rule netdev nd marks ip dscp 0 numgen random mod {every} == 0 counter name marked ip dscp set {RCN}",
        ]
    nft("\n".join(lines) + "\n")


def waiting(link, index):
    """Packets in the queue of the link."""
    head = struct.pack("=IHHII", 36, RTM_GETQDISC, DUMP, 0, 0)
    link.send(head + struct.pack("=BBHiIII", 0, 0, 0, index, 0, 0, 0))
    found, over = 0, False
    while not over:
        data = link.recv(65536)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            over = over or kind == DONE
            if kind != DONE and struct.unpack_from("=i", data, 20)[0] == index:
                found = max(found, queue(data[36:length]))
            data = data[(length + 3) & ~3 :]
    return found


def queue(attributes):
    """Length of a pfifo; 0 of others."""
    name, length = b"", 0
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == KIND:
            name = attributes[4:size]
        elif kind == STATS:
            length = struct.unpack_from("=I", attributes, 4 + 28)[0]
        attributes = attributes[(max(size, 4) + 3) & ~3 :]
    return length if name.startswith(b"pfifo\0") else 0


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def appended(packet, sequence):
    """The packet with our address, if there is room; a packet with other options stays as it is."""
    if packet[0] != 0x45 or len(packet) + 12 > 1500:
        seen["no_room"] += 1
        return packet
    share = round(65535 * o["append"])
    entry = socket.inet_aton(o["address"]) + struct.pack("!HH", share, sequence & 0xFFFF)
    header = bytearray(packet[:20] + bytes([OPTION, 12, 0, 0]) + entry)
    header[0] = 0x48
    struct.pack_into("!H", header, 2, len(packet) + 12)
    struct.pack_into("!H", header, 10, 0)
    struct.pack_into("!H", header, 10, checksum(bytes(header)))
    seen["options"] += 1
    seen["option_bytes"] += 12
    return bytes(header) + packet[20:]


def options():
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    wire.bind(("nd1", 0))
    own, peer = address("nd1"), address("nd0")
    last, sequence = 0.0, 0
    while True:
        frame = wire.recv(4096)
        now = time.monotonic()
        sequence, last = sequence + (now - last > PAUSE), now
        packet = frame[14 : 14 + struct.unpack_from("!H", frame, 16)[0]]
        wire.send(peer + own + b"\x08\x00" + appended(packet, sequence))


def address(device):
    shown = subprocess.run(["ip", "-j", "link", "show", device], capture_output=True, check=True)
    return bytes.fromhex(json.loads(shown.stdout)[0]["address"].replace(":", ""))


def take():
    """Limits of the server: one to a connection."""
    listener = socket.create_server((o["address"], o["agents"]))
    while True:
        stream, (host, _) = listener.accept()
        with stream:
            stream.settimeout(2)
            try:
                said = json.loads(stream.makefile().readline(1000))
                kind, rate, whole = said["kind"], float(said["rate"]), float(said["whole"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            fits = host == o["server"] and kind in MATCH and 0 < rate <= whole
            with lock:
                seen["taken" if fits else "refused"] += 1
                if fits:
                    limits[kind] = (rate, whole, time.monotonic())


def held(now, light):
    """Rates in force: relaxed in steps towards the whole, then gone; at once in a lightly loaded router."""
    rates = {}
    with lock:
        for kind, (rate, whole, since) in list(limits.items()):
            age = int((now - since) / o["delta"])
            if light or age > o["steps"]:
                del limits[kind]
            else:
                rates[kind] = rate + (whole - rate) * age / o["steps"]
    return rates


def counters():
    shown = subprocess.run(["nft", "-j", "list", "counters", "table", "netdev", "nd"], capture_output=True)
    found = [one["counter"] for one in json.loads(shown.stdout)["nftables"] if "counter" in one]
    return {one["name"]: one["packets"] for one in found}


def main():
    begin()
    for work in (options, take):
        threading.Thread(target=work, daemon=True).start()
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    index = socket.if_nametoindex(o["link"])
    average, before, said = 0.0, None, 0.0
    dropped, drops = counters(), 0.0
    while True:
        now = time.monotonic()
        average += WEIGHT * (waiting(link, index) - average)
        congested = average > o["queue"]
        # A limit that works leaves the queue short.
        rates = held(now, average < LIGHT * o["queue"] and now - drops > o["delta"])
        if (congested, rates) != before:
            rules(congested, rates)
            before = (congested, rates)
        if now - said >= SAY:
            said, counts = now, counters()
            if any(counts[name] > dropped[name] for name in ("dropped_syn", "dropped_udp")):
                dropped, drops = counts, now
            counted = {"congested": congested, "average": round(average, 1), "limits": rates}
            print(json.dumps({**counted, **seen, **counts}), flush=True)
        time.sleep(POLL)


main()
