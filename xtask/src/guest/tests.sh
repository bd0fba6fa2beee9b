# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the programs that the list beside it names (`folder<TAB>heading<TAB>program`), one after the
# other, and switches the guest off. What they say goes to the second serial port.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
stty -F /dev/ttyS1 raw
exec > /dev/ttyS1 2>&1 < /dev/null
# systemd has done all that.
if ! grep -q tidegate.systemd /proc/cmdline; then
	mkdir -p /dev/pts /dev/shm
	mount -t devpts devpts /dev/pts
	mount -t tmpfs shm /dev/shm
	mount -t cgroup2 cgroup /sys/fs/cgroup
fi
ip link set lo up
ulimit -n 20000
echo "guest: Linux $(uname -r)"
while IFS="$(printf '\t')" read -r folder heading program; do
	echo "     Running $heading"
	cd "$folder" || continue
	# shellcheck disable=SC2046 # several words
	"$program" --test-threads=1 --color=never $(cat /mnt/guest/skip) < /dev/null
	echo "guest: exit code $?"
done < /mnt/guest/list
sync
echo o > /proc/sysrq-trigger
sleep 60
