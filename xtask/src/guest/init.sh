#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# First process of the guest: the machine's root as a lower layer that nobody can write, memory above
# it, and on to tests.sh.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /host /mem /new
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
	insmod "/modules/$module" || echo "guest: insmod $module failed"
done < /modules/order
options=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o "ro,cache=loose,$options" host /host
mount -t tmpfs -o size=75% mem /mem
mkdir -p /mem/upper /mem/work
mount -t overlay -o lowerdir=/host,upperdir=/mem/upper,workdir=/mem/work root /new
for place in proc sys dev; do
	mount --move "/$place" "/new/$place"
done
for place in tmp run mnt; do
	mount -t tmpfs "$place" "/new/$place"
done
mkdir -p /new/lib/modules /new/mnt/guest
mount -t 9p -o "ro,cache=loose,$options" modules /new/lib/modules
mount -t 9p -o "ro,$options" guest /new/mnt/guest
if grep -q tidegate.systemd /new/proc/cmdline; then
	# No container, whatever the machine itself is, and no first boot, which enables every unit.
	rm -f /new/.dockerenv
	[ -s /new/etc/machine-id ] || echo 7469646567617465000000000000007e > /new/etc/machine-id
	mkdir -p /new/run/systemd/system
	cp /new/mnt/guest/tidegate-guest.service /new/run/systemd/system/
	exec switch_root /new /lib/systemd/systemd
fi
exec switch_root /new /bin/sh /mnt/guest/tests.sh
