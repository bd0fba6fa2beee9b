# SPDX-License-Identifier: Apache-2.0 OR MIT
# foreign.py INTERFACE in|out pass|next|redirect OTHER: somebody's tcx program before all that are there,
# until this process ends. `redirect` goes to the interface OTHER.
import ctypes, platform, signal, socket, struct, sys

BPF_PROG_LOAD, BPF_LINK_CREATE = 5, 28
SCHED_CLS, BPF_F_BEFORE = 3, 8
ATTACH = {"in": 46, "out": 47}
VERDICT = {"pass": 0, "next": -1}
SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    done = libc.syscall(SYSCALL, command, buffer, len(attributes))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}")
    return done


def move(register, value):
    return struct.pack("BBhi", 0xB7, register, 0, value)


def program(side, verdict, other):
    if verdict == "redirect":
        # To another interface: as if received there, or to be sent from there.
        ingress = int(side == "in")
        call = struct.pack("BBhi", 0x85, 0, 0, 23)
        return move(1, socket.if_nametoindex(other)) + move(2, ingress) + call
    return move(0, VERDICT[verdict])


interface, side, verdict, other = sys.argv[1:]
code = ctypes.create_string_buffer(program(side, verdict, other) + b"\x95" + bytes(7))
licence = ctypes.create_string_buffer(b"GPL")
pointers = [ctypes.addressof(text) for text in (code, licence)]
load = struct.pack("IIQQIIQII16s", SCHED_CLS, len(code) // 8, *pointers, 0, 0, 0, 0, 0, b"foreign")
place = (socket.if_nametoindex(interface), ATTACH[side], BPF_F_BEFORE)
link = bpf(BPF_LINK_CREATE, struct.pack("IIIIIIQ", bpf(BPF_PROG_LOAD, load), *place, 0, 0, 0))
print("ready", flush=True)
signal.pause()
