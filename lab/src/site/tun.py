# SPDX-License-Identifier: Apache-2.0 OR MIT
# tun.py NAMESPACE NAME NAMESPACE NAME: two tun devices, and what is sent by one arrives at the other.
# A packet on them begins with IP.
import ctypes, errno, fcntl, os, struct, sys, threading

CLONE_NEWNET, TUNSETIFF, IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001
libc = ctypes.CDLL(None, use_errno=True)


def device(namespace, name):
    with open(namespace) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), namespace)
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
    return end


def relay(a, b):
    while True:
        try:
            os.write(b, os.read(a, 65536))
        except OSError as error:
            # A device that is not up yet takes nothing.
            if error.errno != errno.EIO:
                raise


one, other = device(*sys.argv[1:3]), device(*sys.argv[3:5])
threading.Thread(target=relay, args=(one, other), daemon=True).start()
print("ready", flush=True)
relay(other, one)
